"""Job, claim, statuses and states."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

SYNC = "sync"
"""the kind of job that runs a sync"""
VACUUM = "vacuum"
"""the kind of job that removes superseded versions"""
PUBLISH = "publish"
"""the kind of job that publishes a DataFrame"""
MAINTENANCE = "maintenance"
"""the kind of job that maintains a lake's table"""
TASK = "task"
"""the kind of job that runs a task"""
REPAIR = "repair"
"""the kind of job that loads again what `verify` found to differ"""
BACKFILL = "backfill"
"""the kind of job that loads a range of a sync's source again"""
EVENT = "event"
"""the kind of job that does one phase of the project's events"""
NOTHING = "noop"
"""the kind of job that does nothing, to see that workers are there"""
_TASK_CRASHES = 5


KINDS = frozenset({SYNC, VACUUM, PUBLISH, MAINTENANCE, TASK, REPAIR, BACKFILL, EVENT, NOTHING})
LOADS = frozenset({SYNC, PUBLISH, TASK, EVENT})
"""kinds whose work goes on where it stopped, whoever takes it up"""


def most_crashes(kind: str, max_attempts: int) -> int:
    """How many crashes end a job. What a task says of its retries is meant for its errors: a
    worker that dies is not one."""
    return max(max_attempts, _TASK_CRASHES) if kind == TASK else max_attempts


def ended_by(kind: str, max_attempts: int) -> str:
    """What ends a job for good, in words."""
    crashes = most_crashes(kind, max_attempts)
    if crashes == max_attempts:
        return f"{max_attempts} of either end it"
    return f"{max_attempts} errors or {crashes} crashes end it"


class JobStatus(StrEnum):
    """pending → running → done | failed | cancelled; running → pending when given back."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)


class LockAt(StrEnum):
    """When a job takes its resource: at once, so that a second is refused, or when it starts."""

    SUBMIT = "submit"
    CLAIM = "claim"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Work to be queued.

    Of several with one `unique_key` at most one is unfinished; an `idempotency_key` gives the
    same job to whoever asks again, however often.
    """

    project: str
    kind: str
    name: str
    resource: str | None
    payload: dict[str, Any] = field(default_factory=dict)
    max_attempts: int = 5
    priority: int = 0
    lock_at: LockAt = LockAt.SUBMIT
    visible_at: datetime | None = None
    delay_seconds: float = 0.0
    unique_key: str | None = None
    idempotency_key: str | None = None
    retry_of: UUID | None = None
    limits: tuple[str, ...] = ()
    """named resources of which it takes a place for as long as it runs"""
    needs: tuple[UUID, ...] = ()
    """jobs that must be done before it may run; while they are not, nobody can claim it"""


class Submitted(StrEnum):
    """What became of a request."""

    QUEUED = "queued"
    REPEATED = "repeated"
    """the idempotency key had been used: this is the job it got then"""
    WAITING_ALREADY = "waiting already"
    """an unfinished job has the same unique key: this is that job"""
    LOCKED = "locked"
    """another job has the resource; nothing was queued"""
    DRAINING = "draining"
    """the control plane takes nothing in; nothing was queued"""


@dataclass(frozen=True, slots=True)
class Submission:
    """The answer to a request; without a job nothing was changed."""

    outcome: Submitted
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one job, held by this process."""

    job_id: UUID
    attempt_id: str
    fence: int
    kind: str
    name: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    attempt_count: int
    error_count: int = 0
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class UnknownAttempt:
    """An attempt of which no more is known than its name."""

    job_id: UUID
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt wants its job to end."""

    claim: Claim
    status: JobStatus
    error: str | None = None
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a resource, in words for the person who has to wait."""

    job_id: UUID
    name: str
    status: JobStatus
    attempt_id: str | None
    host: str | None
    pid: int | None
    since: datetime | None
    payload: dict[str, Any]

    def __str__(self) -> str:
        where = f"process {self.pid} on {self.host}" if self.pid else "nobody yet"
        since = f" since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return f"job {self.job_id} ({self.name}, {self.status}), {where}{since}"


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
