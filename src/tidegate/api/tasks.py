"""`/tasks`: the history, every attempt at every job, kept when the jobs are forgotten."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AwareDatetime

from tidegate.api import problem_kinds as kinds
from tidegate.api import task_documents as documents
from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.paging import Cursor, Limit, bad_cursor, decode, encode, links
from tidegate.api.problems import Problem, invalid
from tidegate.api.service import Served, Service
from tidegate.api.task_documents import ApiTask, TaskEvents, TaskPage
from tidegate.api.texts import Text
from tidegate.control.history import History
from tidegate.control.task_questions import Wanted
from tidegate.insight.history_documents import event_document, run_document
from tidegate.model.access import Scope
from tidegate.model.task_history import TaskRecord, TaskStatus
from tidegate.postgres.connect import Connection

router = APIRouter(prefix="/tasks", tags=["tasks"])
TaskId = Annotated[UUID, Path(description="A task's id.")]


@router.get(
    "",
    summary="The newest runs first",
    response_model=TaskPage,
    **route(Scope.READ, responses={200: shown("One page of runs.", documents.PAGE_EXAMPLE)}),
)
def list_tasks(
    request: Request,
    service: Served,
    name: Annotated[list[Text] | None, Query(description="Only these.")] = None,
    kind: Annotated[list[Text] | None, Query(description="Only these.")] = None,
    status: Annotated[list[TaskStatus] | None, Query(description="Only these.")] = None,
    param: Annotated[
        list[Text] | None, Query(description="Only runs that were given this: `NAME=VALUE`.")
    ] = None,
    job_id: Annotated[UUID | None, Query(description="Only the attempts at this job.")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Only runs since then.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only runs before then.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    wanted = Wanted(
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
        responses={200: shown("The run.", documents.EXAMPLE)},
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
        responses={200: shown("Its events.", documents.EVENTS_EXAMPLE)},
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
        raise Problem(
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
