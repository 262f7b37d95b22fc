"""Attempts whose worker is gone or whose lease ran out, and jobs left half cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.control.needs import Needs
from tidegate.control.plane import ControlPlane
from tidegate.model.job import most_crashes
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class DeadAttempt:
    """An attempt whose worker is gone or whose lease ran out."""

    job_id: UUID
    attempt_id: str
    kind: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    crash_count: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class DeadAttempts:
    """Finds the dead and takes their jobs back."""

    plane: ControlPlane

    def list(
        self, connection: Connection, *, resource: str | None = None, project: str | None = None
    ) -> list[DeadAttempt]:
        """Those at a resource, of a project, or all."""
        rows = connection.execute(
            self.plane.statement("job_queue", "list_dead"),
            {"resource": resource, "project": project},
        )
        return [DeadAttempt(*row) for row in rows]

    def reclaim(
        self,
        connection: Connection,
        dead: DeadAttempt,
        actor: str,
        *,
        delay_seconds: float = 0.0,
        published: bool = False,
        last: bool = False,
    ) -> bool:
        """Put a dead attempt's job back; False when it turned out not to be dead.

        A job that has used up its attempts, or whose attempt was the `last` that there can be,
        ends: as done when what it was at is `published`.
        """
        row = connection.execute(
            self.plane.statement("job_queue", "reclaim"),
            {
                "job_id": dead.job_id,
                "attempt_id": dead.attempt_id,
                "actor": actor,
                "delay": delay_seconds,
                "published": published,
                "last": last,
                "channel": self.plane.channel("jobs"),
                "most_crashes": most_crashes(dead.kind, dead.max_attempts),
            },
        ).fetchone()
        if row is not None and row[1]:
            Needs(self.plane).settle(connection, dead.job_id)
        return row is not None
