"""`/jobs`: what is queued, what runs, what became of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response

from tidegate.api import job_documents as documents
from tidegate.api import problem_kinds as kinds
from tidegate.api.answers import answer, tagged_answer
from tidegate.api.audit import audited
from tidegate.api.documentation import route, shown
from tidegate.api.job_documents import ApiJob, CancelledJob, JobPage
from tidegate.api.paging import Cursor, Limit, bad_cursor, decode, encode, links
from tidegate.api.problems import Problem
from tidegate.api.service import Asker, Served, Service
from tidegate.api.texts import Text
from tidegate.control.job_lists import JobLists
from tidegate.control.job_records import JobRecords
from tidegate.errors import UsageError
from tidegate.insight.jobs import read_job
from tidegate.model.access import Scope
from tidegate.model.job import KINDS, JobStatus
from tidegate.postgres.connect import Connection
from tidegate.runtime.cancel import cancel_job

router = APIRouter(prefix="/jobs", tags=["jobs"])
Kind = StrEnum("Kind", {one: one for one in sorted(KINDS)})  # type: ignore[misc]
JobId = Annotated[UUID, Path(description="A job's id.")]


@router.get(
    "",
    summary="The newest jobs first",
    response_model=JobPage,
    **route(Scope.READ, responses={200: shown("One page of jobs.", documents.PAGE_EXAMPLE)}),
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
        {"jobs": [documents.line(one) for one in found], **fields},
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
            200: shown("The job.", documents.EXAMPLE, headers=documents.ETAG),
            304: {"description": "It is still as the ETag says.", "headers": documents.ETAG},
        },
    ),
)
def show_job(request: Request, service: Served, job_id: JobId) -> Response:
    with service.control() as control:
        return tagged_answer(request, documents.detail(read(service, control, job_id)))


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
        responses={200: shown("How it ended.", documents.CANCELLED_EXAMPLE)},
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


def _unknown(job_id: UUID) -> Problem:
    return Problem(kinds.JOB_NOT_FOUND, f"there is no job {job_id}", hint="GET /jobs lists them")


def _ended(job_id: UUID, status: JobStatus) -> Problem:
    return Problem(
        kinds.JOB_ENDED, f"job {job_id} is {status.value} already", job_status=status.value
    )
