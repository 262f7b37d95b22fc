"""Writing the history: what the job tables say of an attempt, kept beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection

_MOST_STEPS = 200
_MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class TaskRecords:
    """Keeps attempts in the history; the same attempt may be written any number of times."""

    plane: ControlPlane

    def write(
        self,
        connection: Connection,
        attempt_ids: Sequence[str],
        *,
        traceback: str | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        """Write down how these attempts stand; one that has ended stays as it was written."""
        connection.execute(
            self.plane.statement("tasks", "record_attempts"),
            {
                "attempt_ids": list(attempt_ids),
                "traceback": traceback,
                "metrics": None if metrics is None else Jsonb(metrics),
                "most_steps": _MOST_STEPS,
            },
        )

    def unsettled(self, connection: Connection, project: str) -> list[str]:
        """Attempts that ended without the history knowing: who held them died, or was replaced."""
        rows = connection.execute(
            self.plane.statement("tasks", "list_unsettled"),
            {"project": project, "limit": _MOST_AT_ONCE},
        )
        return [row[0] for row in rows]

    def unsettled_of_job(self, connection: Connection, job_id: UUID) -> list[str]:
        """The same, of one job."""
        rows = connection.execute(
            self.plane.statement("tasks", "list_unsettled_of_job"), {"job_id": job_id}
        )
        return [row[0] for row in rows]
