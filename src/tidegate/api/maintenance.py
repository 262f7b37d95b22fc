"""`/tables/{db}/{table}/maintenance`: what is done to a table, and what would help it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator

from tidegate.api import maintenance_documents as wishes
from tidegate.api import problem_kinds as kinds
from tidegate.api import table_documents as documents
from tidegate.api.answers import answer
from tidegate.api.audit import audited
from tidegate.api.documentation import route, shown
from tidegate.api.job_documents import detail
from tidegate.api.jobs import read
from tidegate.api.maintenance_documents import MaintenanceJob, MaintenanceWish
from tidegate.api.paging import Cursor, Limit, bad_cursor, decode, encode, links
from tidegate.api.problems import Problem, invalid
from tidegate.api.service import Allow, Asker, Served, Service
from tidegate.api.table_documents import ApiRecommendation, HistoryPage
from tidegate.api.tables import TABLE, Table, reading
from tidegate.api.texts import PLAIN, no_nul
from tidegate.control.job_records import JobRecords
from tidegate.errors import KeyReused
from tidegate.insight.table_documents import history_document, recommendation_document
from tidegate.insight.table_health import policy_of, table_recommendation
from tidegate.insight.table_history import table_history
from tidegate.insight.tables import cache
from tidegate.model.access import Scope
from tidegate.model.job import Submitted
from tidegate.model.maintenance import Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.table_care import foretell
from tidegate.postgres.connect import Connection
from tidegate.runtime.maintaining import record_dry_run, submit_maintenance, table_holder
from tidegate.settings.ordering import BadOrder, read_order

router = APIRouter(prefix="/tables/{db}/{table}/maintenance", tags=["maintenance"])
DRAIN_SECONDS = 30
_TRIES = 5
Key = Annotated[
    str | None,
    AfterValidator(lambda text: text and no_nul(text)),
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A text of your own: however often the request is sent, it is one job.",
        json_schema_extra=PLAIN,
    ),
]


def _refuse_draining(service: Served) -> None:
    """First of all, whatever the body says."""
    with service.control() as control:
        draining = service.context.plane.draining(control)
    if draining is not None:
        raise Problem(
            kinds.DRAINING,
            f"no new jobs are taken in since {draining.since:%Y-%m-%d %H:%M:%S} UTC, by "
            f"{draining.by}; nothing was queued",
            headers={"Retry-After": str(DRAIN_SECONDS)},
        )


@router.post(
    "",
    status_code=202,
    summary="Queue maintenance of a table, or foretell what it would do",
    description="Actions are always done in the same order. What `options` does not say is as the "
    "project says for the table. A dry run takes no lock and starts nothing: its job is done at "
    "once, and the body says what would change.",
    response_model=MaintenanceJob,
    **route(
        Scope.SUBMIT,
        *TABLE,
        kinds.DRAINING,
        kinds.TABLE_BUSY,
        kinds.KEY_REUSED,
        kinds.UNREADABLE,
        changes=True,
        before=(_refuse_draining,),
        responses={202: shown("It is queued.", wishes.EXAMPLE, headers=wishes.HEADERS)},
    ),
)
def submit(
    request: Request,
    service: Served,
    caller: Asker,
    name: Table,
    wish: MaintenanceWish,
    key: Key = None,
) -> Response:
    _check(service, wish)
    with service.control() as control:
        table = name.find(service, control).target
        policy = policy_of(service.context, table)
        order = read_order(policy, wish.actions, wish.options)
        if not wish.dry_run and order.keeps_less(policy.options):
            Allow(Scope.ADMIN)(caller)
        if wish.dry_run:
            job_id, repeated = _foretell(request, service, control, table, order, key)
        else:
            job_id, repeated = _queue(request, service, control, table, order, key, wish.priority)
        job = detail(read(service, control, job_id))
    headers = {"Location": f"/jobs/{job_id}"}
    if repeated:
        headers["Idempotent-Replay"] = "true"
    predicted = (job["result"] or {}).get("predicted") if wish.dry_run else None
    body = {"job_id": job_id, "dry_run": wish.dry_run, "predicted": predicted, "job": job}
    return answer(body, status=202, headers=headers)


@router.get(
    "/recommendation",
    summary="What would help the table now, and why",
    response_model=ApiRecommendation,
    **route(
        Scope.READ,
        *TABLE,
        kinds.UNREADABLE,
        responses={200: shown("Advice, with evidence.", documents.RECOMMENDATION_EXAMPLE)},
    ),
)
def recommend(
    service: Served,
    name: Table,
    predict: Annotated[
        bool, Query(description="Also foretell what it would change, from the metadata of now.")
    ] = False,
) -> Response:
    with service.control() as control:
        table = name.find(service, control)
        with reading(table.target):
            found = table_recommendation(service.context, control, table, predict=predict)
    return answer(recommendation_document(found))


@router.get(
    "/history",
    summary="What was done to the table, the newest first",
    response_model=HistoryPage,
    **route(Scope.READ, *TABLE, responses={200: shown("One page.", documents.HISTORY_EXAMPLE)}),
)
def history(
    request: Request, service: Served, name: Table, limit: Limit = 20, cursor: Cursor = None
) -> Response:
    before = None if cursor is None else _place(cursor)
    with service.control() as control:
        target = name.find(service, control).target
        found = table_history(service.context, control, target, before=before, limit=limit)
    fields, headers = links(request, None if found.next is None else encode([found.next]))
    return answer(history_document(found) | fields, headers=headers)


def _check(service: Service, wish: MaintenanceWish) -> None:
    """What no table could take is refused before the table is looked for."""
    try:
        read_order(service.context.settings.maintenance.policy(), wish.actions, wish.options)
    except BadOrder as error:
        raise invalid([{"in": "body", **one} for one in error.errors]) from None


def _queue(
    request: Request,
    service: Service,
    control: Connection,
    table: Endpoint,
    order: Order,
    key: str | None,
    priority: int,
) -> tuple[UUID, bool]:
    actor = request.state.caller.actor
    for _ in range(_TRIES):
        with control.transaction():
            done = _refused_key(
                lambda: submit_maintenance(
                    service.context,
                    control,
                    table,
                    order,
                    actor=actor,
                    idempotency_key=key,
                    priority=priority,
                )
            )
            if done.job_id is not None:
                repeated = done.outcome is Submitted.REPEATED
                audited(
                    request,
                    control,
                    "repeated" if repeated else "queued",
                    object=str(table),
                    job_id=done.job_id,
                )
                return done.job_id, repeated
        if done.outcome is Submitted.DRAINING:
            _refuse_draining(service)
        holder = table_holder(service.context, control, table)
        if holder is not None:
            raise Problem(
                kinds.TABLE_BUSY,
                f"{table} is held by {holder}; nothing was queued",
                headers={"Holder": str(holder.job_id)},
                holder=str(holder.job_id),
            )
    raise Problem(kinds.BUSY, f"{table} changes hands faster than it can be taken")


def _foretell(
    request: Request,
    service: Service,
    control: Connection,
    table: Endpoint,
    order: Order,
    key: str | None,
) -> tuple[UUID, bool]:
    context = service.context
    with reading(table):
        effects = foretell(context, table, order, now=cache(context).clock(control))
    with control.transaction():
        began = control.execute("SELECT now()").fetchone()
        job_id = _refused_key(
            lambda: record_dry_run(
                context,
                control,
                table,
                order,
                effects,
                actor=request.state.caller.actor,
                idempotency_key=key,
            )
        )
        audited(request, control, "dry run", object=str(table), job_id=job_id)
        record = JobRecords(context.plane).get(control, job_id)
    assert record is not None
    assert began is not None
    return job_id, record.submitted_at < began[0]


def _refused_key(submit: Any) -> Any:
    """A key that was given to other work is a problem of its own."""
    try:
        return submit()
    except KeyReused as error:
        raise Problem(kinds.KEY_REUSED, error.message, hint=error.hint) from None


def _place(cursor: str) -> UUID:
    (text,) = decode(cursor, 1)
    try:
        return UUID(text)
    except ValueError:
        raise bad_cursor() from None
