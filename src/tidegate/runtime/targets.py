"""Which table a job publishes into, told from its payload."""

from __future__ import annotations

from typing import Any

from tidegate.errors import DeclarationError
from tidegate.ledger.fences import FencedTable
from tidegate.model.job import NOTHING
from tidegate.model.relation import Endpoint
from tidegate.runtime.job_context import JobContext


def destination_of_job(
    context: JobContext, kind: str, payload: dict[str, Any]
) -> FencedTable | None:
    """The destination to be fenced; None for a job that publishes nothing.

    A malformed job does not, either: whoever works it refuses it first. An unknown connection
    raises: without the fence nobody may say that such a job has ended.
    """
    target = payload.get("target") if isinstance(payload, dict) else None
    if kind == NOTHING or not isinstance(target, str):
        return None
    try:
        endpoint = Endpoint.parse(target)
    except DeclarationError:
        return None
    context.settings.connection(endpoint.connection)
    return context.destination(endpoint)
