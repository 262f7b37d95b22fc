"""/drain, /audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tidegate.core.identity import Scope
from tidegate.jobs.drain import DrainStatus, draining_status
from tidegate.postgres.connection import Connection
from tidegate.service.openapi import Cursor, Limit, bad_cursor, decode, encode, links, route, shown
from tidegate.service.problems import answer
from tidegate.service.request_context import Asker, Served

router = APIRouter(tags=["service"])
_LARGEST = 2**63 - 1
_AUDIT_EXAMPLE = {
    "id": 7,
    "at": "2026-11-02T03:10:00+00:00",
    "actor": "token nightly (HTTP)",
    "action": "POST /tables/{db}/{table}/maintenance",
    "object": "lake:raw.orders",
    "outcome": "queued",
    "job_id": "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f",
    "detail": None,
}


class ApiAuditLine(BaseModel):
    """One request that changed something, or was refused."""

    id: int
    at: datetime
    actor: str
    action: str
    object: str | None
    outcome: str
    job_id: UUID | None
    detail: dict[str, Any] | None


class AuditPage(BaseModel):
    """Lines of the audit, the newest first."""

    lines: list[ApiAuditLine]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


@router.get(
    "/audit",
    summary="Who changed what, the newest first",
    response_model=AuditPage,
    **route(
        Scope.ADMIN,
        responses={
            200: shown("One page.", {"lines": [_AUDIT_EXAMPLE], "next_cursor": None, "next": None})
        },
    ),
)
def list_audit(
    request: Request, service: Served, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    before = None if cursor is None else _place(cursor)
    with service.control() as control:
        found = service.audit.newest(control, before=before, limit=limit + 1)
    more = len(found) > limit
    found = found[:limit]
    fields, headers = links(request, encode([found[-1].id]) if more else None)
    return answer({"lines": found, **fields}, headers=headers)


def audited(
    request: Request,
    control: Connection,
    outcome: str,
    *,
    object: str | None,
    job_id: UUID | None = None,
) -> None:
    """Write a change into the audit, in the transaction of the change where there is one."""
    service, caller = request.app.state.service, request.state.caller
    service.audit.record(
        control,
        actor=caller.actor,
        action=f"{request.method} {request.scope['route'].path}",
        object=object,
        outcome=outcome,
        job_id=job_id,
    )
    request.state.audited = True


def _place(cursor: str) -> int:
    (text,) = decode(cursor, 1)
    if not text.isascii() or not text.isdigit() or int(text) > _LARGEST:
        raise bad_cursor()
    return int(text)


_DRAIN_EXAMPLE = {
    "draining": True,
    "since": "2026-11-02T03:10:00+00:00",
    "by": "token ops (HTTP)",
    "queued": 2,
    "running": 1,
}


class Drain(BaseModel):
    """Whether new jobs are taken in, and what is left to be done."""

    draining: bool
    since: datetime | None
    by: str | None
    queued: int = Field(description="In all projects of the control database.")
    running: int


class DrainRequest(BaseModel):
    """Whether to drain."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"draining": True}]}
    )

    draining: bool


@router.get(
    "/drain",
    summary="Whether new jobs are taken in",
    response_model=Drain,
    **route(Scope.READ, responses={200: shown("How it stands.", _DRAIN_EXAMPLE)}),
)
def read_drain(service: Served) -> Response:
    with service.control() as control:
        return answer(_document(draining_status(service.context.plane, control)))


@router.put(
    "/drain",
    summary="Take no new jobs in, or take them in again",
    description="For all projects of the control database. What is queued and what runs is worked "
    "off.",
    response_model=Drain,
    **route(
        Scope.ADMIN, changes=True, responses={200: shown("How it stands now.", _DRAIN_EXAMPLE)}
    ),
)
def set_drain(request: Request, service: Served, caller: Asker, wish: DrainRequest) -> Response:
    plane = service.context.plane
    with service.control() as control, control.transaction():
        if wish.draining:
            changed = plane.start_draining(control, caller.actor)
        else:
            changed = plane.stop_draining(control)
        outcome = ("on" if wish.draining else "off") + ("" if changed else ", as it was")
        audited(request, control, outcome, object=None)
        found = draining_status(plane, control)
    return answer(_document(found))


def _document(found: DrainStatus) -> dict[str, object]:
    return {
        "draining": found.draining is not None,
        "since": found.draining.since if found.draining else None,
        "by": found.draining.by if found.draining else None,
        "queued": found.queued,
        "running": found.running,
    }
