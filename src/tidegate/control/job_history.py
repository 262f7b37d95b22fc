"""What happened to one job: its attempts, and who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One claim of a job, and how it went; without an outcome it is still at work."""

    attempt_id: str
    worker_id: str
    fence: int
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    error: str | None

    @property
    def where(self) -> str:
        """Its process, told from the worker's id: the worker itself may be gone by now."""
        host, _, rest = self.worker_id.rpartition("-")
        host, _, pid = host.rpartition("-")
        return f"process {pid} on {host}" if rest and host and pid.isdigit() else self.worker_id


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Who did what to a job, and when."""

    at: datetime
    event: str
    actor: str
    attempt_id: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Reads what is kept of a job; changes nothing."""

    plane: ControlPlane

    def attempts(self, connection: Connection, job_id: UUID) -> list[JobAttempt]:
        """The attempts, in order."""
        rows = connection.execute(
            self.plane.statement("job_attempts", "list_attempts"), {"job_id": job_id}
        )
        return [JobAttempt(*row) for row in rows]

    def audit(self, connection: Connection, job_id: UUID) -> list[AuditLine]:
        """What happened, in order."""
        rows = connection.execute(
            self.plane.statement("job_audit", "list_audit"), {"job_id": job_id}
        )
        return [AuditLine(*row) for row in rows]
