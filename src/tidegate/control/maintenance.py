"""What was done to the tables of lakes, told from the jobs that did it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.model.job import JobStatus
from tidegate.model.maintenance import Action
from tidegate.model.recommendation import LastRun
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection

_ACTIONS = frozenset(Action)


@dataclass(frozen=True, slots=True)
class PastMaintenance:
    """One job, and the actions it came to."""

    job_id: UUID
    status: JobStatus
    submitted_by: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    payload: dict[str, Any]
    result: dict[str, Any] | None
    actions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MaintenanceJobs:
    """Reads the maintenance of one project."""

    plane: ControlPlane
    project: str

    def last_runs(self, connection: Connection, target: Endpoint) -> dict[Action, LastRun]:
        """Of each action its newest run at a table, however it ended."""
        rows = connection.execute(
            self.plane.statement("maintenance", "last_actions"), self._key(target)
        )
        return {Action(row[0]): LastRun(*row[1:]) for row in rows if row[0] in _ACTIONS}

    def history(
        self,
        connection: Connection,
        target: Endpoint,
        *,
        before: UUID | None = None,
        limit: int = 20,
        dry_runs: bool = True,
    ) -> list[PastMaintenance]:
        """The newest first, from before a job on."""
        rows = connection.execute(
            self.plane.statement("maintenance", "list_history"),
            self._key(target) | {"before": before, "limit": limit, "dry_runs": dry_runs},
        )
        return [PastMaintenance(row[0], JobStatus(row[1]), *row[2:]) for row in rows]

    def try_turn(self, connection: Connection, target: Endpoint) -> bool:
        """Be the only one to decide about a table, until the transaction ends."""
        key = f"tidegate:policy:{self.plane.schema}:{self.project}:{target}"
        row = connection.execute(
            self.plane.statement("maintenance", "try_turn"), {"key": key}
        ).fetchone()
        return bool(row and row[0])

    def _key(self, target: Endpoint) -> dict[str, Any]:
        return {"project": self.project, "name": str(target)}
