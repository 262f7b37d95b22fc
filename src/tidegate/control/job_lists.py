"""Jobs side by side, for people who look; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.job_records import JobAction
from tidegate.control.plane import ControlPlane
from tidegate.model.job import JobStatus
from tidegate.model.job_state import JobState, job_state
from tidegate.postgres.connect import Connection


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

    plane: ControlPlane

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
            self.plane.statement("job_lists", "list_jobs"),
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
            self.plane.statement("job_lists", "find_jobs"),
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
            self.plane.statement("job_lists", "later_jobs"),
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
            self.plane.statement("job_lists", "count_queue"), {"project": project}
        )
        return [KindCount(*row) for row in rows]

    def count_failed(self, connection: Connection, project: str) -> int:
        """Jobs of the last day that failed for good and that no later one has made good."""
        row = connection.execute(
            self.plane.statement("job_lists", "count_failed"), {"project": project}
        ).fetchone()
        assert row is not None
        return int(row[0])

    def actions_after(self, connection: Connection, job_id: UUID, position: int) -> list[JobAction]:
        """The steps of a job that a watcher has not seen yet."""
        rows = connection.execute(
            self.plane.statement("job_actions", "list_actions_after"),
            {"job_id": job_id, "position": position},
        )
        return [JobAction(*row) for row in rows]


def _line(row: tuple[Any, ...]) -> JobLine:
    found: list[Any] = [*row]
    found[3] = JobStatus(found[3])
    return JobLine(*found)
