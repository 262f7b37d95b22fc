"""Jobs, their attempts and the states they pass through."""

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


class JobStatus(StrEnum):
    """pending → running → done | failed | cancelled; running → pending when reclaimed."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Work to be queued; `resource` is locked from the moment of submission."""

    project: str
    kind: str
    name: str
    resource: str
    payload: dict[str, Any] = field(default_factory=dict)
    max_attempts: int = 5


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one job, held by this process."""

    job_id: UUID
    attempt_id: str
    fence: int
    kind: str
    name: str
    resource: str
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    attempt_count: int


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
