"""/events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4, uuid5

from anyio import to_thread
from fastapi import APIRouter, Header, Request, Response
from psycopg.errors import UndefinedColumn, UndefinedTable
from pydantic import AfterValidator, BaseModel, Field

from tidegate.core.identity import Scope
from tidegate.events.intake import (
    AcceptedEvents,
    accept_events,
    body_text,
    cut_array,
    cut_lines,
    find_id,
)
from tidegate.events.project_events import find_events, find_raw
from tidegate.events.status import read_event_status, status_document
from tidegate.events.tables import ensure_tables
from tidegate.load.sources.cdc.slot_registry import quick_source
from tidegate.service import problems as kinds
from tidegate.service.openapi import PLAIN, no_nul, route, shown
from tidegate.service.problems import HttpProblem, answer, invalid
from tidegate.service.request_context import Asker, Served, Service

STATUS_EXAMPLE: dict[str, Any] = {
    "connection": "warehouse",
    "raw": "public.raw_events",
    "facts": "warehouse.fact_events",
    "is_provisioned": True,
    "pending": 1200,
    "oldest_pending_at": "2026-11-02T03:08:11+00:00",
    "lag_seconds": 109.2,
    "failed": 1,
    "reasons": [
        {
            "error": "occurred_at is missing ($.occurred_at)",
            "events": 1,
            "last_at": "2026-11-02T03:05:02+00:00",
            "example": "5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f",
        }
    ],
    "last_hour": {
        "batches": 3,
        "done": 58211,
        "failed": 1,
        "facts": 58002,
        "busy_seconds": 9.7,
        "last_committed_at": "2026-11-02T03:05:02+00:00",
        "per_second": 6001.2,
    },
    "partitions": 4,
    "first_partition": "fact_events_2026_10",
    "last_partition": "fact_events_2027_01",
    "facts_bytes": 48234496,
    "views": [
        {
            "view": "analytics.mv_revenue_summary",
            "refreshed_at": "2026-11-02T03:05:04+00:00",
            "seconds": 0.8,
            "rows": 410,
            "is_current": True,
            "failed_at": None,
            "error": None,
        }
    ],
}


class ApiReason(BaseModel):
    """Why events failed."""

    error: str
    events: int
    last_at: datetime | None
    example: UUID = Field(description="The id of one of them.")


class ApiThroughput(BaseModel):
    """What was committed in the last hour."""

    batches: int
    done: int
    failed: int
    facts: int
    busy_seconds: float
    last_committed_at: datetime | None
    per_second: float | None = Field(description="Events in a second of work.")


class ApiView(BaseModel):
    """One view over the facts."""

    view: str
    refreshed_at: datetime | None
    seconds: float | None
    rows: int | None
    is_current: bool = Field(description="Whether it shows every change that is committed.")
    failed_at: datetime | None
    error: str | None


class ApiEventStatus(BaseModel):
    """Backlog, lag, throughput, failures and views."""

    connection: str
    raw: str
    facts: str
    is_provisioned: bool = Field(description="Whether the tables are there.")
    pending: int = Field(description="Events that wait; counted up to a million.")
    oldest_pending_at: datetime | None
    lag_seconds: float | None = Field(description="How long the oldest of them has waited.")
    failed: int
    reasons: list[ApiReason] = Field(description="The most frequent ones.")
    last_hour: ApiThroughput
    partitions: int = Field(description="Months of facts.")
    first_partition: str | None
    last_partition: str | None
    facts_bytes: int
    views: list[ApiView]


router = APIRouter(prefix="/events", tags=["events"])
LINES = "application/x-ndjson"
_KEYS = UUID("6f1c8d5e-3f0b-5f57-9a53-0f5c1f1b6a10")
_EVENT = {
    "event_id": "5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f",
    "type": "purchase",
    "occurred_at": "2026-11-02T03:09:58Z",
    "account": {"id": "a-4"},
    "user": {"id": "u-17"},
    "amount": 19.90,
    "currency": "EUR",
}
_EXAMPLE = {"accepted": 1, "known": 0, "ids": [_EVENT["event_id"]], "differing": []}
_BODY = {
    "required": True,
    "description": "One event, an array of events, or one event a line. What is not JSON is taken "
    "in as well, and fails later with its reason.",
    "content": {
        "application/json": {
            "schema": {},
            "examples": {"one": {"value": _EVENT}, "several": {"value": [_EVENT]}},
        },
        LINES: {
            "schema": {"type": "string"},
            "examples": {"lines": {"value": '{"type": "signup"}\n{"type": "purchase"}\n'}},
        },
    },
}
Key = Annotated[
    str | None,
    AfterValidator(lambda text: text and no_nul(text)),
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A text of your own: the ids of the events are made of it and their places in "
        "the request, so that however often it is sent, each is taken in once.",
        json_schema_extra=PLAIN,
    ),
]
EventId = Annotated[
    UUID | None, Header(alias="Event-Id", description="The id of the one event that is sent.")
]


class AcceptedAnswer(BaseModel):
    """What became of the events of a request."""

    accepted: int = Field(description="Events that are new.")
    known: int = Field(description="Events that had come in before, by their ids.")
    ids: list[UUID] = Field(description="The ids of all of them, in the order of the request.")
    differing: list[UUID] = Field(
        description="Known ones that came with another body now. The first one stays."
    )


@router.post(
    "",
    status_code=202,
    summary="Take events in",
    description="Nothing in them is looked at but their ids: Event-Id for one event, else "
    "Idempotency-Key, else a member `event_id` or `id` of the event itself that is a uuid, else a "
    "new one. When the answer arrives, they are kept.",
    response_model=AcceptedAnswer,
    **route(
        Scope.EVENTS,
        kinds.REFUSED,
        changes=True,
        responses={202: shown("They are kept.", _EXAMPLE)},
        openapi_extra={"requestBody": _BODY},
    ),
)
async def post_events(
    request: Request, service: Served, caller: Asker, event_id: EventId = None, key: Key = None
) -> Response:
    body = await request.body()
    lines = request.headers.get("content-type", "").partition(";")[0].strip().lower() == LINES

    def work() -> dict[str, Any]:
        bodies = _cut(body, lines=lines, most=service.context.settings.serve.max_events)
        return _take_in(service, _identified(bodies, event_id, key, caller.name), caller.name)

    document = await to_thread.run_sync(work)
    # Each event is kept with its time: a line in the audit for every request would say no more.
    request.state.only_added = True
    return answer(document, status=202)


@router.get(
    "/status",
    summary="How events stand: backlog, lag, throughput, failures, views",
    description="Up to a second old.",
    response_model=ApiEventStatus,
    **route(Scope.READ, kinds.REFUSED, responses={200: shown("How they stand.", STATUS_EXAMPLE)}),
)
def get_status(request: Request, service: Served) -> Response:
    since, context = service.kept.changes, service.context
    found = read_event_status(context, quick_source(context))
    return service.keep(request, answer(status_document(found)), since)


def _cut(body: bytes, *, lines: bool, most: int) -> list[bytes]:
    """The events of a request; what cannot be cut is one event, which fails later."""
    if not lines and not body.strip():
        raise HttpProblem(kinds.MALFORMED, "the body is empty; there is no event in it")
    pieces = cut_lines(body) if lines else cut_array(body)
    if pieces is None:
        return [body]
    if len(pieces) > most:
        raise HttpProblem(
            kinds.TOO_LARGE,
            f"there are {len(pieces):,} events in the body, and {most:,} are taken at a time "
            "(serve.max_events); none was kept",
        )
    return pieces


def _identified(
    bodies: list[bytes], event_id: UUID | None, key: str | None, sender: str
) -> list[tuple[UUID, str]]:
    if event_id is not None:
        if len(bodies) != 1:
            said = f"the id of one event, and there are {len(bodies):,} in the body"
            raise invalid([{"field": "Event-Id", "in": "header", "message": said}])
        return [(event_id, body_text(bodies[0]))]
    if key is not None:
        # Two senders may choose the same key; they never mean the same events.
        space = uuid5(_KEYS, f"{len(sender)}:{sender}{key}")
        ids = [uuid5(space, str(place)) for place in range(len(bodies))]
    else:
        ids = [find_id(body) or uuid4() for body in bodies]
    return [(one, body_text(body)) for one, body in zip(ids, bodies, strict=True)]


def _take_in(service: Service, events: list[tuple[UUID, str]], sender: str) -> dict[str, Any]:
    taken = _keep(service, events, sender)
    service.count_events(taken.accepted, taken.known)
    return {
        "accepted": taken.accepted,
        "known": taken.known,
        "ids": [one for one, _ in events],
        "differing": sorted(taken.differing),
    }


def _keep(service: Service, events: list[tuple[UUID, str]], sender: str) -> AcceptedEvents:
    # The model is not needed to take events in: it may be wrong while they come.
    connection_name, raw = find_raw(service.context)
    with service.context.databases.lease(connection_name) as connection:
        try:
            return accept_events(connection, raw, events, sender)
        except (UndefinedTable, UndefinedColumn):
            ensure_tables(connection, find_events(service.context))
            return accept_events(connection, raw, events, sender)
