"""The history of tasks: one record for every attempt at a job, and what happened to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


class TaskStatus(StrEnum):
    """How an attempt ended; `lost` when its process died, `given back` when it was told to go."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    GIVEN_BACK = "given back"


FAILURES = (TaskStatus.FAILED, TaskStatus.LOST)
"""what counts as a failure where failures are counted"""


class TaskEventKind(StrEnum):
    """What can happen to a task."""

    PENDING = "pending"
    STARTED = "started"
    PROGRESS = "progress"
    DONE = "done"
    FAILED = "failed"
    RETRIED = "retried"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One thing that happened to a task."""

    at: datetime
    event: TaskEventKind
    detail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One attempt at a job, as it is remembered."""

    id: UUID
    recorded_at: datetime
    job_id: UUID
    attempt_id: str
    attempt: int
    project: str
    kind: str
    name: str
    parameters: dict[str, Any]
    parameters_digest: str
    host: str | None
    worker_id: str
    status: TaskStatus
    submitted_at: datetime
    started_at: datetime
    finished_at: datetime | None
    rows: int | None
    bytes: int | None
    metrics: dict[str, Any] | None
    error: str | None
    traceback: str | None

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        if self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


def moment_of(task_id: UUID) -> datetime:
    """When a task was recorded, which its id begins with.

    >>> moment_of(UUID("019a8f3c-1b2d-7c4e-8f10-2a3b4c5d6e7f")).isoformat()
    '2025-11-17T01:58:45.165000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=min(task_id.int >> 80, _LAST))


def parameter_text(value: object) -> str:
    """A parameter's value as the history keeps it, so that it can be asked for.

    >>> parameter_text(date(2026, 11, 1)), parameter_text(True)
    ('2026-11-01', 'true')
    """
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
