"""Jobs as the service tells of them: without what changes by itself, so that an ETag holds."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from tidegate.control.job_lists import JobLine
from tidegate.insight.job_documents import detail_document, line_document
from tidegate.insight.jobs import JobDetail
from tidegate.model.job import JobStatus
from tidegate.model.job_state import JobState

# What every heartbeat or the clock itself moves.
_RESTLESS = ("seen_at", "age_seconds", "lease_until", "beat_at", "worker_is_connected", "queue")
ETAG = {"ETag": {"description": "Changes when the job does.", "schema": {"type": "string"}}}


class ApiJobLine(BaseModel):
    """One job of a list."""

    model_config = ConfigDict(extra="allow")

    job_id: UUID
    kind: str
    name: str
    status: JobStatus
    state: JobState = Field(description="More closely: why it waits, or whether it is stuck.")
    priority: int
    attempt_count: int
    error_count: int
    crash_count: int
    max_attempts: int
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None = Field(description="Once it has ended.")
    error: str | None
    progress: dict[str, Any] | None
    rows: int | None
    loads: int | None


class JobPage(BaseModel):
    """Jobs, the newest first."""

    jobs: list[ApiJobLine]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


class ApiJobAction(BaseModel):
    """One step that a job has done."""

    position: int
    attempt_id: str
    action: str
    detail: dict[str, Any]
    finished_at: datetime


class ApiJob(ApiJobLine):
    """Everything of one job."""

    project: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None
    result: dict[str, Any] | None
    submitted_by: str
    retry_of: UUID | None
    retried_as: UUID | None
    attempts: list[dict[str, Any]]
    actions: list[ApiJobAction]
    audit: list[dict[str, Any]]
    lock: dict[str, Any] | None
    advice: list[str]


class CancelledJob(BaseModel):
    """How a cancel ended: cancelled, or done because the publish was quicker."""

    job_id: UUID
    name: str
    status: JobStatus


def line(job: JobLine) -> dict[str, Any]:
    return _settled(line_document(job))


def detail(job: JobDetail) -> dict[str, Any]:
    return _settled(detail_document(job))


def _settled(found: dict[str, Any]) -> dict[str, Any]:
    for name in _RESTLESS:
        found.pop(name, None)
    if found["finished_at"] is None:
        found["duration_seconds"] = None
    return found


_ID = "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f"
_LINE: dict[str, Any] = {
    "job_id": _ID,
    "kind": "maintenance",
    "name": "lake:raw.orders",
    "status": "done",
    "state": "done",
    "priority": 0,
    "attempt_count": 1,
    "error_count": 0,
    "crash_count": 0,
    "max_attempts": 5,
    "submitted_at": "2026-11-02T03:10:00+00:00",
    "started_at": "2026-11-02T03:10:00.120000+00:00",
    "finished_at": "2026-11-02T03:10:21.480000+00:00",
    "duration_seconds": 21.36,
    "error": None,
    "progress": None,
    "rows": None,
    "loads": None,
}
PAGE_EXAMPLE = {
    "jobs": [_LINE],
    "next_cursor": "WyIyMDI2LTExLTAyIl0",
    "next": "/jobs?limit=1&cursor=WyIyMDI2LTExLTAyIl0",
}
EXAMPLE = _LINE | {
    "project": "shop",
    "resource": "lake:raw.orders",
    "payload": {
        "target": "lake:raw.orders",
        "order": {"expire_snapshots": {"older_than_seconds": 432000.0, "retain_last": 1}},
    },
    "plan": None,
    "result": {"actions": 1},
    "submitted_by": "token nightly (HTTP)",
    "retry_of": None,
    "retried_as": None,
    "attempts": [{"attempt_id": "5f0c", "fence": 12, "outcome": "done"}],
    "actions": [
        {
            "position": 1,
            "attempt_id": "5f0c",
            "action": "expire_snapshots",
            "detail": {"status": "done", "seconds": 3.2, "files_before": 120, "files_after": 40},
            "finished_at": "2026-11-02T03:10:20+00:00",
        }
    ],
    "audit": [{"event": "submitted", "actor": "token nightly (HTTP)"}],
    "lock": None,
    "advice": [],
}
CANCELLED_EXAMPLE = {"job_id": _ID, "name": "lake:raw.orders", "status": "cancelled"}
