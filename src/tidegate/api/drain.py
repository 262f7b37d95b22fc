"""`/drain`: take no new jobs in, as before an upgrade."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tidegate.api.answers import answer
from tidegate.api.audit import audited
from tidegate.api.documentation import route, shown
from tidegate.api.service import Asker, Served
from tidegate.insight.draining import DrainStatus, draining_status
from tidegate.model.access import Scope

router = APIRouter(tags=["service"])
_EXAMPLE = {
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


class DrainWish(BaseModel):
    """Whether to drain."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"draining": True}]}
    )

    draining: bool


@router.get(
    "/drain",
    summary="Whether new jobs are taken in",
    response_model=Drain,
    **route(Scope.READ, responses={200: shown("How it stands.", _EXAMPLE)}),
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
    **route(Scope.ADMIN, changes=True, responses={200: shown("How it stands now.", _EXAMPLE)}),
)
def set_drain(request: Request, service: Served, caller: Asker, wish: DrainWish) -> Response:
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
