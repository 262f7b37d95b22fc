"""What the control database remembers of jobs, for those who read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.model.job import JobStatus
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class RecentJob:
    """The latest job of a sync, for status."""

    name: str
    job_id: UUID
    status: JobStatus
    error: str | None
    result: dict[str, Any] | None
    submitted_at: Any
    finished_at: Any


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as it stands."""

    job_id: UUID
    project: str
    kind: str
    name: str
    resource: str | None
    status: JobStatus
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: str | None
    attempt_count: int
    error_count: int
    crash_count: int
    max_attempts: int
    priority: int
    retry_of: UUID | None
    submitted_by: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    visible_at: datetime | None
    claimed_at: datetime | None
    lease_until: datetime | None
    attempt_id: str | None
    host: str | None
    pid: int | None
    beat_at: datetime | None
    lock_at: str
    unique_key: str | None
    limits: list[str] | None = None


@dataclass(frozen=True, slots=True)
class JobAction:
    """One step that a job has done."""

    position: int
    attempt_id: str
    action: str
    detail: dict[str, Any]
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class JobRecords:
    """Reads jobs; changes nothing."""

    plane: ControlPlane

    def get(self, connection: Connection, job_id: UUID) -> JobRecord | None:
        row = connection.execute(
            self.plane.statement("jobs", "get_job"), {"job_id": job_id}
        ).fetchone()
        if row is None:
            return None
        found: list[Any] = [*row]
        found[5] = JobStatus(found[5])
        return JobRecord(*found)

    def actions(self, connection: Connection, job_id: UUID) -> list[JobAction]:
        """The steps of a job, in order."""
        rows = connection.execute(
            self.plane.statement("job_actions", "list_actions"), {"job_id": job_id}
        )
        return [JobAction(*row) for row in rows]

    def recent(self, connection: Connection, project: str, kind: str) -> dict[str, RecentJob]:
        rows = connection.execute(
            self.plane.statement("jobs", "recent_jobs"), {"project": project, "kind": kind}
        )
        return {row[0]: RecentJob(row[0], row[1], JobStatus(row[2]), *row[3:]) for row in rows}

    def last_result(
        self, connection: Connection, project: str, kind: str, name: str
    ) -> dict[str, Any]:
        """What the latest successful job of this name left, or nothing."""
        row = connection.execute(
            self.plane.statement("jobs", "last_result"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return dict(row[0]) if row and row[0] else {}

    def unfinished_plans(
        self, connection: Connection, project: str, kind: str, name: str
    ) -> list[dict[str, Any]]:
        """What the jobs of this name that have not ended are at."""
        rows = connection.execute(
            self.plane.statement("jobs", "unfinished_plans"),
            {"project": project, "kind": kind, "name": name},
        )
        return [dict(plan) for (plan,) in rows]

    def last_target(self, connection: Connection, project: str, kind: str, name: str) -> str | None:
        """Where the latest successful job of this name loaded into."""
        row = connection.execute(
            self.plane.statement("jobs", "last_target"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return row[0] if row else None
