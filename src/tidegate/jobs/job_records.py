"""Jobs read: records, lists, attempts, audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import JobState, JobStatus, job_state
from tidegate.postgres.connection import Connection


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

    plane: ControlDatabase

    def get(self, connection: Connection, job_id: UUID) -> JobRecord | None:
        row = connection.execute(
            self.plane.statement("jobs/jobs", "get_job"), {"job_id": job_id}
        ).fetchone()
        if row is None:
            return None
        found: list[Any] = [*row]
        found[5] = JobStatus(found[5])
        return JobRecord(*found)

    def actions(self, connection: Connection, job_id: UUID) -> list[JobAction]:
        """The steps of a job, in order."""
        rows = connection.execute(
            self.plane.statement("jobs/job_actions", "list_actions"), {"job_id": job_id}
        )
        return [JobAction(*row) for row in rows]

    def recent(self, connection: Connection, project: str, kind: str) -> dict[str, RecentJob]:
        rows = connection.execute(
            self.plane.statement("jobs/jobs", "recent_jobs"), {"project": project, "kind": kind}
        )
        return {row[0]: RecentJob(row[0], row[1], JobStatus(row[2]), *row[3:]) for row in rows}

    def last_result(
        self, connection: Connection, project: str, kind: str, name: str
    ) -> dict[str, Any]:
        """What the latest successful job of this name left, or nothing."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "last_result"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return dict(row[0]) if row and row[0] else {}

    def unfinished_plans(
        self, connection: Connection, project: str, kind: str, name: str
    ) -> list[dict[str, Any]]:
        """What the jobs of this name that have not ended are at."""
        rows = connection.execute(
            self.plane.statement("jobs/jobs", "unfinished_plans"),
            {"project": project, "kind": kind, "name": name},
        )
        return [dict(plan) for (plan,) in rows]

    def last_target(self, connection: Connection, project: str, kind: str, name: str) -> str | None:
        """Where the latest successful job of this name loaded into."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "last_target"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return row[0] if row else None


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

    plane: ControlDatabase

    def attempts(self, connection: Connection, job_id: UUID) -> list[JobAttempt]:
        """The attempts, in order."""
        rows = connection.execute(
            self.plane.statement("jobs/job_attempts", "list_attempts"), {"job_id": job_id}
        )
        return [JobAttempt(*row) for row in rows]

    def audit(self, connection: Connection, job_id: UUID) -> list[AuditLine]:
        """What happened, in order."""
        rows = connection.execute(
            self.plane.statement("jobs/job_audit", "list_audit"), {"job_id": job_id}
        )
        return [AuditLine(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job of a list, and the moment at which it was so by the database's clock."""

    job_id: UUID
    kind: str
    name: str
    status: JobStatus
    attempt_count: int
    error_count: int
    crash_count: int
    max_attempts: int
    priority: int
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_requested_by: str | None
    error: str | None
    progress: dict[str, Any] | None
    loads: int | None
    rows: int | None
    visible_at: datetime | None
    claimed_at: datetime | None
    lease_until: datetime | None
    attempt_id: str | None
    worker_id: str | None
    host: str | None
    pid: int | None
    command: str | None
    beat_at: datetime | None
    worker_is_connected: bool
    locked_by: UUID | None
    seen_at: datetime

    @property
    def state(self) -> JobState:
        return job_state(
            self.status,
            now=self.seen_at,
            visible_at=self.visible_at,
            lease_until=self.lease_until,
            attempt_id=self.attempt_id,
            attempt_count=self.attempt_count,
            is_locked_out=self.locked_by is not None,
            worker_is_connected=self.worker_is_connected,
        )

    @property
    def age_seconds(self) -> float:
        """How long ago it was submitted."""
        return (self.seen_at - self.submitted_at).total_seconds()

    @property
    def duration_seconds(self) -> float | None:
        """From its first attempt to its end, or until now."""
        if self.started_at is None:
            return None
        return ((self.finished_at or self.seen_at) - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class FoundJob:
    """What tells two jobs with similar ids apart."""

    job_id: UUID
    kind: str
    name: str
    status: str


@dataclass(frozen=True, slots=True)
class LaterJob:
    """A job of the same kind and name, submitted later."""

    job_id: UUID
    status: JobStatus
    retry_of: UUID | None


@dataclass(frozen=True, slots=True)
class KindCount:
    """How many jobs of one kind are unfinished, and how."""

    kind: str
    ready: int
    later: int
    next_at: datetime | None
    running: int


@dataclass(frozen=True, slots=True)
class JobLists:
    """Reads many jobs at a time."""

    plane: ControlDatabase

    def newest(
        self,
        connection: Connection,
        project: str,
        *,
        job_ids: Sequence[UUID] | None = None,
        statuses: Sequence[JobStatus] | None = None,
        kinds: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        before: tuple[datetime, UUID] | None = None,
        limit: int | None = None,
    ) -> list[JobLine]:
        """The newest jobs of a project first; `before` is the last one of the list so far."""
        before_at, before_id = before or (None, None)
        rows = connection.execute(
            self.plane.statement("jobs/job_lists", "list_jobs"),
            {
                "project": project,
                "job_ids": None if job_ids is None else list(job_ids),
                "statuses": None if statuses is None else [one.value for one in statuses],
                "unfinished": bool(statuses) and not any(one.is_terminal for one in statuses or ()),
                "kinds": None if kinds is None else list(kinds),
                "names": None if names is None else list(names),
                "before_at": before_at,
                "before_id": before_id,
                "limit": limit,
            },
        )
        return [_line(row) for row in rows]

    def find(
        self, connection: Connection, project: str, lowest: UUID, highest: UUID, limit: int
    ) -> list[FoundJob]:
        """Jobs whose id lies between two."""
        rows = connection.execute(
            self.plane.statement("jobs/job_lists", "find_jobs"),
            {"project": project, "lowest": lowest, "highest": highest, "limit": limit},
        )
        return [FoundJob(*row) for row in rows]

    def later(
        self,
        connection: Connection,
        *,
        project: str,
        kind: str,
        name: str,
        job_id: UUID,
        submitted_at: datetime,
    ) -> list[LaterJob]:
        """Jobs of the same kind and name that came after one, the newest first."""
        rows = connection.execute(
            self.plane.statement("jobs/job_lists", "later_jobs"),
            {
                "project": project,
                "kind": kind,
                "name": name,
                "job_id": job_id,
                "submitted_at": submitted_at,
            },
        )
        return [LaterJob(row[0], JobStatus(row[1]), row[2]) for row in rows]

    def count_queue(self, connection: Connection, project: str) -> list[KindCount]:
        rows = connection.execute(
            self.plane.statement("jobs/job_lists", "count_queue"), {"project": project}
        )
        return [KindCount(*row) for row in rows]

    def count_failed(self, connection: Connection, project: str) -> int:
        """Jobs of the last day that failed for good and that no later one has made good."""
        row = connection.execute(
            self.plane.statement("jobs/job_lists", "count_failed"), {"project": project}
        ).fetchone()
        assert row is not None
        return int(row[0])

    def actions_after(self, connection: Connection, job_id: UUID, position: int) -> list[JobAction]:
        """The steps of a job that a watcher has not seen yet."""
        rows = connection.execute(
            self.plane.statement("jobs/job_actions", "list_actions_after"),
            {"job_id": job_id, "position": position},
        )
        return [JobAction(*row) for row in rows]


def _line(row: tuple[Any, ...]) -> JobLine:
    found: list[Any] = [*row]
    found[3] = JobStatus(found[3])
    return JobLine(*found)
