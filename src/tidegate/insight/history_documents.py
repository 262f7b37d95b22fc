"""The history as documents, for programs that read `--json` or ask the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate.model.task_history import TaskEvent, TaskRecord
from tidegate.model.trend import Trend, sparkline


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
