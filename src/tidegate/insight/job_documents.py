"""Jobs as documents, for programs that read `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tidegate.control.job_lists import JobLine
from tidegate.insight.job_advice import advise
from tidegate.insight.jobs import JobDetail
from tidegate.insight.queue import QueueStatus


def line_document(line: JobLine) -> dict[str, Any]:
    """One job of a list."""
    found = asdict(line)
    found.update(
        state=line.state.value, age_seconds=line.age_seconds, duration_seconds=line.duration_seconds
    )
    return found


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    """The queue in numbers; the workers have a place of their own."""
    found = asdict(queue)
    found["unserved"] = dict(queue.unserved)
    del found["workers"]
    return found


def detail_document(detail: JobDetail) -> dict[str, Any]:
    """Everything of one job."""
    return {
        **asdict(detail.record),
        **line_document(detail.line),
        "attempts": [asdict(one) | {"where": one.where} for one in detail.attempts],
        "actions": [asdict(one) for one in detail.actions],
        "audit": [asdict(one) for one in detail.audit],
        "lock": None if detail.lock_holder is None else asdict(detail.lock_holder),
        "retried_as": detail.retried_as,
        "queue": queue_document(detail.queue),
        "advice": advise(detail),
    }
