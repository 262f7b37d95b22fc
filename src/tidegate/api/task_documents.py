"""Tasks as the service tells of them: runs that are remembered, and what happened to each."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from tidegate.model.task_history import TaskEventKind, TaskStatus


class ApiTaskLine(BaseModel):
    """One run of a list."""

    id: UUID
    job_id: UUID
    attempt_id: str
    attempt: int = Field(description="Which of its job's attempts it was.")
    project: str
    kind: str
    name: str
    parameters: dict[str, Any]
    parameters_digest: str
    host: str | None
    worker_id: str
    status: TaskStatus
    recorded_at: datetime
    submitted_at: datetime
    started_at: datetime
    finished_at: datetime | None
    seconds: float | None = Field(description="Once it has ended.")
    rows: int | None
    bytes: int | None
    metrics: dict[str, Any] | None = Field(
        description="What the job told of itself; `spark` is what it cost Spark."
    )
    error: str | None


class TaskPage(BaseModel):
    """Runs, the newest first."""

    tasks: list[ApiTaskLine]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


class ApiTask(ApiTaskLine):
    """One run, whole."""

    traceback: str | None


class ApiTaskEvent(BaseModel):
    """One thing that happened to a task."""

    at: datetime
    event: TaskEventKind
    detail: dict[str, Any] | None


class TaskEvents(BaseModel):
    """What happened to a task, in order."""

    events: list[ApiTaskEvent]


_LINE: dict[str, Any] = {
    "id": "019a8f3c-1b2d-7c4e-8f10-2a3b4c5d6e7f",
    "job_id": "019a8f3c-1a00-7c4e-9f10-2a3b4c5d6e7f",
    "attempt_id": "5f0c4a1b7d9e4c0f8a2b3c4d5e6f7081",
    "attempt": 1,
    "project": "shop",
    "kind": "sync",
    "name": "orders",
    "parameters": {"full_refresh": False, "target": "warehouse:raw.orders"},
    "parameters_digest": "2d1f6c0a9b8e7d6c5b4a39281706f5e4d3c2b1a0",
    "host": "worker-1",
    "worker_id": "worker-1-7-1f2e3d4c",
    "status": "done",
    "recorded_at": "2026-11-02T03:10:00.120000+00:00",
    "submitted_at": "2026-11-02T03:10:00+00:00",
    "started_at": "2026-11-02T03:10:00.120432+00:00",
    "finished_at": "2026-11-02T03:10:21.480432+00:00",
    "seconds": 21.36,
    "rows": 48213,
    "bytes": None,
    "metrics": {
        "loads": 1,
        "rows": 48213,
        "changed": 48213,
        "spark": {"jobs": 1, "stages": 1, "tasks": 4, "executor_run_ms": 18210},
    },
    "error": None,
}
PAGE_EXAMPLE = {
    "tasks": [_LINE],
    "next_cursor": "WyIyMDI2LTExLTAyIl0",
    "next": "/tasks?limit=1&cursor=WyIyMDI2LTExLTAyIl0",
}
EXAMPLE = _LINE | {"traceback": None}
EVENTS_EXAMPLE = {
    "events": [
        {"at": "2026-11-02T03:10:00+00:00", "event": "pending", "detail": None},
        {"at": "2026-11-02T03:10:00.120432+00:00", "event": "started", "detail": None},
        {"at": "2026-11-02T03:10:21.480432+00:00", "event": "done", "detail": None},
    ]
}
