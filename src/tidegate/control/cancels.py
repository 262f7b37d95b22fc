"""Cancelling a running job in two steps: take it from its attempt, then, later, end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.control.needs import Needs
from tidegate.control.plane import ControlPlane
from tidegate.model.job import JobStatus
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Cancelling:
    """A job that no attempt may write for any more, and that has not ended yet."""

    job_id: UUID
    kind: str
    name: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Cancels:
    """The store's side of a cancel; between the two steps the destination's fence is raised."""

    plane: ControlPlane

    def request(
        self, connection: Connection, job_id: UUID, *, actor: str, patience_seconds: float
    ) -> Cancelling | None:
        """Rotate the attempt and tell its worker; None when nobody works on the job.

        Whoever asked has `patience_seconds` to end it; after that a sweeper does.
        """
        row = connection.execute(
            self.plane.statement("jobs", "request_cancel"),
            {
                "job_id": job_id,
                "actor": actor,
                "patience": patience_seconds,
                "channel": self.plane.channel("cancels"),
            },
        ).fetchone()
        return None if row is None else Cancelling(row[0], *row[2:7])

    def finish(
        self,
        connection: Connection,
        job_id: UUID,
        status: JobStatus,
        *,
        actor: str,
        error: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> bool:
        """End a job that is being cancelled; False when another has done so."""
        row = connection.execute(
            self.plane.statement("jobs", "finish_cancel"),
            {
                "job_id": job_id,
                "status": status.value,
                "error": error,
                "result": None if result is None else Jsonb(result),
                "actor": actor,
            },
        ).fetchone()
        if row is not None:
            Needs(self.plane).settle(connection, job_id)
        return row is not None

    def list_half_done(self, connection: Connection, project: str) -> list[Cancelling]:
        """Jobs whose canceller did not live to end them."""
        rows = connection.execute(
            self.plane.statement("job_queue", "list_half_cancelled"), {"project": project}
        )
        return [Cancelling(*row) for row in rows]
