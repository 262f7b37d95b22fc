"""How a job stands, in more words than its status has."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from tidegate.model.job import JobStatus


class JobState(StrEnum):
    """A status, and for the unfinished ones why nothing happens or what is happening."""

    READY = "waiting"
    LATER = "waiting for its time"
    BACKOFF = "waiting to be tried again"
    LOCKED = "waiting for its table"
    NEEDS = "waiting for other jobs"
    RUNNING = "running"
    OVERDUE = "running, lease over"
    LOST = "running, worker gone"
    CANCELLING = "being cancelled"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


def job_state(
    status: JobStatus,
    *,
    now: datetime,
    visible_at: datetime | None,
    lease_until: datetime | None,
    attempt_id: str | None,
    attempt_count: int,
    is_locked_out: bool,
    worker_is_connected: bool,
) -> JobState:
    """The state of a job at a moment of the control database's clock."""
    if status is JobStatus.PENDING:
        if visible_at is None:
            return JobState.NEEDS
        if visible_at is not None and visible_at > now:
            return JobState.BACKOFF if attempt_count else JobState.LATER
        return JobState.LOCKED if is_locked_out else JobState.READY
    if status is JobStatus.RUNNING:
        if attempt_id is None:
            return JobState.CANCELLING
        if lease_until is not None and lease_until < now:
            return JobState.OVERDUE
        return JobState.RUNNING if worker_is_connected else JobState.LOST
    return JobState(status.value)
