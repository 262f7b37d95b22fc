"""Recorded runs, their events and trends."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


class RunStatus(StrEnum):
    """How an attempt ended; `lost` when its process died, `given back` when it was told to go."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    GIVEN_BACK = "given back"


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
    status: RunStatus
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


PREVIOUS = 30
"""so many runs are what is usual"""
LEAST = 5
"""with fewer than these nothing is usual yet"""
_ABOVE_MEDIAN = 1.2
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Trend:
    """The runs of one thing: how long the successful ones took, how often it failed."""

    kind: str
    name: str
    seconds: tuple[float, ...]
    """of the runs that were done, the oldest first"""
    failures: tuple[int, ...]
    """a week each, this one last"""
    last_status: str
    last_at: datetime

    @property
    def last_seconds(self) -> float | None:
        return self.seconds[-1] if self.seconds else None

    def percentile(self, share: float) -> float | None:
        """What so many of the runs took at most; None before the first that was done."""
        return percentile(self.seconds, share) if self.seconds else None

    @property
    def usual_seconds(self) -> float | None:
        """The middle of the runs before the last; None while there are too few."""
        before = self._before()
        return percentile(before, 0.5) if len(before) >= LEAST else None

    @property
    def is_slower(self) -> bool:
        """Whether the last run took longer than usual.

        It did when it lies above the 95th percentile of the 30 before it, and is more than a
        fifth above their median.
        """
        usual, last = self.usual_seconds, self.last_seconds
        if usual is None or last is None:
            return False
        return last > percentile(self._before(), 0.95) and last > usual * _ABOVE_MEDIAN

    def _before(self) -> tuple[float, ...]:
        return self.seconds[:-1][-PREVIOUS:]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies, drawn straight between two neighbours.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def sparkline(values: Sequence[float]) -> str:
    """Values as bars, the lowest and the highest at the ends of the scale.

    >>> sparkline([1, 2, 8])
    '▁▂█'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    if low == high:
        return _BARS[0] * len(values)
    highest = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * highest)] for value in values)


def run_document(run: TaskRecord) -> dict[str, Any]:
    """One run of a list."""
    found = asdict(run) | {"status": run.status.value, "seconds": run.seconds}
    del found["traceback"]
    return found


def whole_document(run: TaskRecord, events: Sequence[TaskEvent]) -> dict[str, Any]:
    """One run with all that is known of it."""
    return run_document(run) | {
        "traceback": run.traceback,
        "events": [event_document(one) for one in events],
    }


def event_document(event: TaskEvent) -> dict[str, Any]:
    return {"at": event.at, "event": event.event.value, "detail": event.detail}


def trend_document(trend: Trend) -> dict[str, Any]:
    """How long one thing takes, and how often it fails."""
    return {
        "kind": trend.kind,
        "name": trend.name,
        "runs": len(trend.seconds),
        "p50": trend.percentile(0.5),
        "p95": trend.percentile(0.95),
        "p99": trend.percentile(0.99),
        "last_seconds": trend.last_seconds,
        "usual_seconds": trend.usual_seconds,
        "slower_than_usual": trend.is_slower,
        "failures_a_week": list(trend.failures),
        "last_status": trend.last_status,
        "last_at": trend.last_at,
        "sparkline": sparkline(trend.seconds[-30:]),
    }
