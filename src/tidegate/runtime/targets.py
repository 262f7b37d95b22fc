"""Which table a job publishes into, told from its payload."""

from __future__ import annotations

from typing import Any

from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import TidegateError
from tidegate.model.job import NOTHING
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context


def destination_of_job(
    context: Context, kind: str, payload: dict[str, Any]
) -> PostgresDestination | None:
    """The destination to be fenced; None for a kind of job that publishes nothing.

    An unknown connection raises: without the fence nobody may say that such a job has ended.
    """
    if kind == NOTHING:
        return None
    target = payload.get("target")
    if not isinstance(target, str):
        raise TidegateError(
            f"a job of kind {kind} does not say which table it writes to",
            'its payload must hold "target": "connection:schema.table"',
        )
    endpoint = Endpoint.parse(target)
    context.settings.connection(endpoint.connection)
    return context.destination(endpoint)
