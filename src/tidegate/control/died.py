"""Attempts that went wrong, which may have left files behind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Died:
    """How many attempts at a resource went wrong since its orphans were last removed."""

    since: datetime | None
    attempts: int


def count_died(
    plane: ControlPlane, connection: Connection, resources: Collection[str]
) -> dict[str, Died]:
    """For each resource; one statement, however many there are."""
    rows = connection.execute(
        plane.statement("job_attempts", "count_died"), {"resources": list(resources)}
    )
    return {resource: Died(since, attempts) for resource, since, attempts in rows}
