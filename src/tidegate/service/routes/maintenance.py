"""/tables/.../maintenance."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from tidegate.config.maintenance import ACTION_OPTIONS, BadActionOptions, read_action_options
from tidegate.core.errors import KeyReused
from tidegate.core.identity import Scope
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import Action, ActionList
from tidegate.jobs.job import Submitted
from tidegate.jobs.job_records import JobRecords
from tidegate.load.submit import PRIORITIES
from tidegate.maintenance.submit import (
    predict_actions,
    record_dry_run,
    submit_maintenance,
    table_holder,
)
from tidegate.maintenance.table_report import (
    history_document,
    policy_of,
    recommendation_document,
    table_recommendation,
)
from tidegate.maintenance.tables import cache, table_history
from tidegate.postgres.connection import Connection
from tidegate.service import problems as kinds
from tidegate.service.openapi import (
    PLAIN,
    Cursor,
    Limit,
    bad_cursor,
    decode,
    encode,
    links,
    no_nul,
    route,
    shown,
)
from tidegate.service.problems import HttpProblem, answer, invalid
from tidegate.service.request_context import Allow, Asker, Served, Service
from tidegate.service.routes import tables as documents
from tidegate.service.routes.control import audited
from tidegate.service.routes.jobs import EXAMPLE as JOB_EXAMPLE
from tidegate.service.routes.jobs import ApiJob, detail, read
from tidegate.service.routes.tables import (
    PREDICTED_EXAMPLE,
    TABLE,
    ApiRecommendation,
    HistoryAnswer,
    Table,
    reading,
)

_MOST = 20
_ACTIONS = {
    "type": "array",
    "minItems": 1,
    "maxItems": _MOST,
    "items": {"type": "string", "enum": [one.value for one in Action]},
}
_OPTIONS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        action.value: model.model_json_schema() | {"title": action.value}
        for action, model in ACTION_OPTIONS.items()
    },
}
HEADERS = {
    "Location": {"description": "Where the job is.", "schema": {"type": "string"}},
    "Idempotent-Replay": {
        "description": "`true` when the key had been used before: this is the job it got then.",
        "schema": {"type": "string"},
    },
}


class MaintenanceRequest(BaseModel):
    """What is to be done to a table."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "actions": ["expire_snapshots", "rewrite_data_files"],
                    "options": {"expire_snapshots": {"older_than": "5 days", "retain_last": 3}},
                    "dry_run": False,
                }
            ]
        },
    )

    # Names and values are looked at later, so that a message can say which there are.
    actions: Annotated[list[str], Field(max_length=_MOST), WithJsonSchema(_ACTIONS)]
    options: Annotated[dict[str, dict[str, Any]], WithJsonSchema(_OPTIONS)] = Field(
        default_factory=dict, max_length=_MOST
    )
    dry_run: bool = False
    priority: int = Field(0, ge=PRIORITIES[0], le=PRIORITIES[-1], description="Higher ones first.")


class MaintenanceJob(BaseModel):
    """The job that was queued, or the dry run that is done."""

    job_id: UUID
    dry_run: bool
    predicted: dict[str, Any] | None = Field(description="Of a dry run: each action's effect.")
    job: ApiJob


EXAMPLE = {
    "job_id": JOB_EXAMPLE["job_id"],
    "dry_run": True,
    "predicted": PREDICTED_EXAMPLE,
    "job": JOB_EXAMPLE,
}


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
        raise HttpProblem(
            kinds.DRAINING,
            f"no new jobs are taken in since {draining.since:%Y-%m-%d %H:%M:%S} UTC, by "
            f"{draining.by}; nothing was queued",
            headers={"Retry-After": str(DRAIN_SECONDS)},
        )


@router.post(
    "",
    status_code=202,
    summary="Queue maintenance of a table, or predict what it would do",
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
        responses={202: shown("It is queued.", EXAMPLE, headers=HEADERS)},
    ),
)
def submit(
    request: Request,
    service: Served,
    caller: Asker,
    name: Table,
    wish: MaintenanceRequest,
    key: Key = None,
) -> Response:
    _check(service, wish)
    with service.control() as control:
        table = name.find(service, control).target
        policy = policy_of(service.context, table)
        order = read_action_options(policy, wish.actions, wish.options)
        if not wish.dry_run and order.keeps_less(policy.options):
            Allow(Scope.ADMIN)(caller)
        if wish.dry_run:
            job_id, repeated = _predict(request, service, control, table, order, key)
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
        bool, Query(description="Also predict what it would change, from the metadata of now.")
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
    response_model=HistoryAnswer,
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


def _check(service: Service, wish: MaintenanceRequest) -> None:
    """What no table could take is refused before the table is looked for."""
    try:
        read_action_options(
            service.context.settings.maintenance.policy(), wish.actions, wish.options
        )
    except BadActionOptions as error:
        raise invalid([{"in": "body", **one} for one in error.errors]) from None


def _queue(
    request: Request,
    service: Service,
    control: Connection,
    table: Endpoint,
    order: ActionList,
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
            raise HttpProblem(
                kinds.TABLE_BUSY,
                f"{table} is held by {holder}; nothing was queued",
                headers={"Holder": str(holder.job_id)},
                holder=str(holder.job_id),
            )
    raise HttpProblem(kinds.BUSY, f"{table} changes hands faster than it can be taken")


def _predict(
    request: Request,
    service: Service,
    control: Connection,
    table: Endpoint,
    order: ActionList,
    key: str | None,
) -> tuple[UUID, bool]:
    context = service.context
    with reading(table):
        effects = predict_actions(context, table, order, now=cache(context).clock(control))
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
        raise HttpProblem(kinds.KEY_REUSED, error.message, hint=error.hint) from None


def _place(cursor: str) -> UUID:
    (text,) = decode(cursor, 1)
    try:
        return UUID(text)
    except ValueError:
        raise bad_cursor() from None
