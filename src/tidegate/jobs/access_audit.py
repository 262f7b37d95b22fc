"""Who changed what through the service, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.jobs.control_database import ControlDatabase
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One request that changed something, or was refused."""

    id: int
    at: datetime
    actor: str
    action: str
    object: str | None
    outcome: str
    job_id: UUID | None
    detail: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AccessAudit:
    """The record of changing requests; lines are added, and forgotten when they are old."""

    plane: ControlDatabase
    project: str

    def record(
        self,
        connection: Connection,
        *,
        actor: str,
        action: str,
        object: str | None,
        outcome: str,
        job_id: UUID | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        connection.execute(
            self.plane.statement("jobs/access_audit", "record_access"),
            {
                "project": self.project,
                "actor": actor,
                "action": action,
                "object": object,
                "outcome": outcome,
                "job_id": job_id,
                "detail": None if detail is None else Jsonb(detail),
            },
        )

    def newest(
        self, connection: Connection, *, before: int | None = None, limit: int = 50
    ) -> list[AccessLine]:
        rows = connection.execute(
            self.plane.statement("jobs/access_audit", "list_access"),
            {"project": self.project, "before": before, "limit": limit},
        )
        return [AccessLine(*row) for row in rows]

    def prune(self, connection: Connection, older_than_seconds: float, limit: int = 1_000) -> int:
        """Forget at most `limit` old lines; 0 when there is nothing left to do."""
        return connection.execute(
            self.plane.statement("jobs/access_audit", "prune_access"),
            {"project": self.project, "older_than": older_than_seconds, "limit": limit},
        ).rowcount
