"""How a job stands is told from its row, its lease, its lock and its worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.jobs.job import JobState, JobStatus, job_state

NOW = datetime(2026, 11, 15, 3, 0, tzinfo=UTC)
BEFORE, AFTER = NOW - timedelta(seconds=40), NOW + timedelta(seconds=40)
PENDING = {"status": JobStatus.PENDING, "visible_at": BEFORE}
RUNNING = {
    "status": JobStatus.RUNNING,
    "visible_at": AFTER,
    "lease_until": AFTER,
    "attempt_id": "a",
    "attempt_count": 1,
    "worker_is_connected": True,
}


def state(**given: Any) -> JobState:
    values: dict[str, Any] = {
        "now": NOW,
        "visible_at": None,
        "lease_until": None,
        "attempt_id": None,
        "attempt_count": 0,
        "is_locked_out": False,
        "worker_is_connected": False,
        **given,
    }
    return job_state(values.pop("status"), **values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (PENDING, JobState.READY),
        (PENDING | {"visible_at": AFTER}, JobState.LATER),
        (PENDING | {"visible_at": AFTER, "attempt_count": 1}, JobState.BACKOFF),
        (PENDING | {"is_locked_out": True}, JobState.LOCKED),
        (PENDING | {"visible_at": AFTER, "is_locked_out": True}, JobState.LATER),
        (RUNNING, JobState.RUNNING),
        (RUNNING | {"worker_is_connected": False}, JobState.LOST),
        (RUNNING | {"lease_until": BEFORE}, JobState.OVERDUE),
        (RUNNING | {"lease_until": BEFORE, "worker_is_connected": False}, JobState.OVERDUE),
        (RUNNING | {"attempt_id": None}, JobState.CANCELLING),
        (RUNNING | {"attempt_id": None, "lease_until": BEFORE}, JobState.CANCELLING),
    ],
)
def test_an_unfinished_job_says_why_nothing_happens_or_what_does(
    given: dict[str, Any], expected: JobState
) -> None:
    assert state(**given) is expected


@pytest.mark.parametrize("status", [one for one in JobStatus if one.is_terminal])
def test_a_finished_job_is_what_its_status_says(status: JobStatus) -> None:
    assert state(status=status).value == status.value
