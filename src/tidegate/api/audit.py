"""`/audit`: who changed what through the service."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.paging import Cursor, Limit, bad_cursor, decode, encode, links
from tidegate.api.service import Served
from tidegate.model.access import Scope
from tidegate.postgres.connect import Connection

router = APIRouter(tags=["service"])
_LARGEST = 2**63 - 1
_EXAMPLE = {
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
            200: shown("One page.", {"lines": [_EXAMPLE], "next_cursor": None, "next": None})
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
