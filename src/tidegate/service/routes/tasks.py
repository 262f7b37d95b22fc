"""/tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AwareDatetime, BaseModel, Field

from tidegate.core.identity import Scope
from tidegate.jobs.history.query import History, HistoryFilter
from tidegate.jobs.history.record import (
    RunStatus,
    TaskEventKind,
    TaskRecord,
    event_document,
    run_document,
)
from tidegate.postgres.connection import Connection
from tidegate.service import problems as kinds
from tidegate.service.openapi import (
    Cursor,
    Limit,
    Text,
    bad_cursor,
    decode,
    encode,
    links,
    route,
    shown,
)
from tidegate.service.problems import HttpProblem, answer, invalid
from tidegate.service.request_context import Served, Service


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
    status: RunStatus
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


router = APIRouter(prefix="/tasks", tags=["tasks"])
TaskId = Annotated[UUID, Path(description="A task's id.")]


@router.get(
    "",
    summary="The newest runs first",
    response_model=TaskPage,
    **route(Scope.READ, responses={200: shown("One page of runs.", PAGE_EXAMPLE)}),
)
def list_tasks(
    request: Request,
    service: Served,
    name: Annotated[list[Text] | None, Query(description="Only these.")] = None,
    kind: Annotated[list[Text] | None, Query(description="Only these.")] = None,
    status: Annotated[list[RunStatus] | None, Query(description="Only these.")] = None,
    param: Annotated[
        list[Text] | None, Query(description="Only runs that were given this: `NAME=VALUE`.")
    ] = None,
    job_id: Annotated[UUID | None, Query(description="Only the attempts at this job.")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Only runs since then.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only runs before then.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    wanted = HistoryFilter(
        names=name or (),
        kinds=kind or (),
        statuses=status or (),
        parameters=_parameters(param or []),
        since=since,
        until=until,
        job_id=job_id,
        before=None if cursor is None else _place(cursor),
    )
    with service.control() as control:
        found = History(service.context.plane).newest(
            control, service.project.name, wanted, limit=limit + 1
        )
    more = len(found) > limit
    found = found[:limit]
    next_cursor = encode((found[-1].recorded_at.isoformat(), found[-1].id)) if more else None
    fields, headers = links(request, next_cursor)
    return answer({"tasks": [run_document(one) for one in found], **fields}, headers=headers)


@router.get(
    "/{task_id}",
    summary="Everything of one run",
    response_model=ApiTask,
    **route(
        Scope.READ,
        kinds.TASK_NOT_FOUND,
        responses={200: shown("The run.", EXAMPLE)},
    ),
)
def show_task(service: Served, task_id: TaskId) -> Response:
    with service.control() as control:
        found = _read(service, control, task_id)
    return answer(run_document(found) | {"traceback": found.traceback})


@router.get(
    "/{task_id}/events",
    summary="What happened to one run, in order",
    response_model=TaskEvents,
    **route(
        Scope.READ,
        kinds.TASK_NOT_FOUND,
        responses={200: shown("Its events.", EVENTS_EXAMPLE)},
    ),
)
def list_events(service: Served, task_id: TaskId) -> Response:
    with service.control() as control:
        _read(service, control, task_id)
        found = History(service.context.plane).events(control, task_id)
    return answer({"events": [event_document(one) for one in found]})


def _read(service: Service, control: Connection, task_id: UUID) -> TaskRecord:
    found = History(service.context.plane).get(control, service.project.name, task_id)
    if found is None:
        raise HttpProblem(
            kinds.TASK_NOT_FOUND, f"there is no task {task_id}", hint="GET /tasks lists them"
        )
    return found


def _parameters(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise invalid([{"field": "param", "in": "query", "message": "write NAME=VALUE"}])
        found[name] = value
    return found


def _place(cursor: str) -> tuple[datetime, UUID]:
    at, task_id = decode(cursor, 2)
    try:
        found = datetime.fromisoformat(at), UUID(task_id)
    except ValueError:
        raise bad_cursor() from None
    if found[0].tzinfo is None:
        raise bad_cursor()
    return found
