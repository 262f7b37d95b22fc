"""/jobs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tidegate.core.errors import UsageError
from tidegate.core.identity import Scope
from tidegate.jobs.cancel import cancel_job
from tidegate.jobs.job import KINDS, JobState, JobStatus
from tidegate.jobs.job_records import JobLine, JobLists, JobRecords
from tidegate.jobs.job_view import JobDetail, detail_document, line_document, read_job
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
from tidegate.service.problems import HttpProblem, answer, tagged_answer
from tidegate.service.request_context import Asker, Served, Service
from tidegate.service.routes.control import audited

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


router = APIRouter(prefix="/jobs", tags=["jobs"])
Kind = StrEnum("Kind", {one: one for one in sorted(KINDS)})  # type: ignore[misc]
JobId = Annotated[UUID, Path(description="A job's id.")]


@router.get(
    "",
    summary="The newest jobs first",
    response_model=JobPage,
    **route(Scope.READ, responses={200: shown("One page of jobs.", PAGE_EXAMPLE)}),
)
def list_jobs(
    request: Request,
    service: Served,
    status: Annotated[list[JobStatus] | None, Query(description="Only these.")] = None,
    kind: Annotated[list[Kind] | None, Query(description="Only these.")] = None,
    name: Annotated[list[Text] | None, Query(description="Only these.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    with service.control() as control:
        found = JobLists(service.context.plane).newest(
            control,
            service.project.name,
            statuses=status or None,
            kinds=None if not kind else [one.value for one in kind],
            names=name or None,
            before=None if cursor is None else _place(cursor),
            limit=limit + 1,
        )
    more = len(found) > limit
    found = found[:limit]
    next_cursor = encode((found[-1].submitted_at.isoformat(), found[-1].job_id)) if more else None
    fields, headers = links(request, next_cursor)
    return answer(
        {"jobs": [line(one) for one in found], **fields},
        headers=headers,
    )


@router.get(
    "/{job_id}",
    summary="Everything of one job",
    response_model=ApiJob,
    **route(
        Scope.READ,
        kinds.JOB_NOT_FOUND,
        responses={
            200: shown("The job.", EXAMPLE, headers=ETAG),
            304: {"description": "It is still as the ETag says.", "headers": ETAG},
        },
    ),
)
def show_job(request: Request, service: Served, job_id: JobId) -> Response:
    with service.control() as control:
        return tagged_answer(request, detail(read(service, control, job_id)))


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job that waits or runs",
    description="After the answer nothing more of it is published. A job that published first is "
    "`done`, and the answer says so.",
    response_model=CancelledJob,
    **route(
        Scope.SUBMIT,
        kinds.JOB_NOT_FOUND,
        kinds.JOB_ENDED,
        kinds.BUSY,
        changes=True,
        responses={200: shown("How it ended.", CANCELLED_EXAMPLE)},
    ),
)
def cancel(request: Request, service: Served, caller: Asker, job_id: JobId) -> Response:
    with service.control() as control:
        record = JobRecords(service.context.plane).get(control, job_id)
        if record is None or record.project != service.project.name:
            raise _unknown(job_id)
        if record.status.is_terminal:
            raise _ended(job_id, record.status)
        try:
            ended = cancel_job(service.context, control, job_id, actor=caller.actor)
        except UsageError:
            # It has ended by itself meanwhile.
            again = JobRecords(service.context.plane).get(control, job_id)
            if again is None or not again.status.is_terminal:
                raise
            raise _ended(job_id, again.status) from None
        audited(request, control, ended.status.value, object=record.name, job_id=job_id)
    return answer({"job_id": job_id, "name": record.name, "status": ended.status})


def read(service: Service, control: Connection, job_id: UUID) -> Any:
    """One job, whole; Problem when it is not there."""
    plane, project = service.context.plane, service.project.name
    try:
        return read_job(plane, control, project, job_id)
    except UsageError:
        raise _unknown(job_id) from None


def _place(cursor: str) -> tuple[datetime, UUID]:
    at, job_id = decode(cursor, 2)
    try:
        found = datetime.fromisoformat(at), UUID(job_id)
    except ValueError:
        raise bad_cursor() from None
    if found[0].tzinfo is None:
        raise bad_cursor()
    return found


def _unknown(job_id: UUID) -> HttpProblem:
    return HttpProblem(
        kinds.JOB_NOT_FOUND, f"there is no job {job_id}", hint="GET /jobs lists them"
    )


def _ended(job_id: UUID, status: JobStatus) -> HttpProblem:
    return HttpProblem(
        kinds.JOB_ENDED, f"job {job_id} is {status.value} already", job_status=status.value
    )
