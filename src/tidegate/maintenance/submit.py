"""Queue maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.core.errors import DestinationError, KeyReused, TidegateError, UsageError
from tidegate.core.identity import new_job_id
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import (
    Action,
    ActionList,
    ActionOptions,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
)
from tidegate.jobs.claim import table_resource
from tidegate.jobs.job import MAINTENANCE, Holder, JobRequest, LockAt, Submission
from tidegate.jobs.queue import Jobs
from tidegate.load.context import Context
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.maintenance.actions import MARGIN_SECONDS, bound_expiry
from tidegate.maintenance.prediction import predict
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import CONTROL


def maintenance_request(
    context: Context,
    target: Endpoint,
    order: ActionList,
    *,
    actor: str,
    lock_at: LockAt = LockAt.SUBMIT,
    priority: int = 0,
    unique_key: str | None = None,
    idempotency_key: str | None = None,
) -> JobRequest:
    """The job that does this to a table."""
    if not context.is_lake(target.connection):
        raise UsageError(
            f"{target} is in a database; only the tables of a lake are maintained",
            "see them with: tidegate table list",
        )
    if not order.steps:
        raise UsageError(
            f"maintenance of {target} with nothing to do",
            f"name one or more of {', '.join(Action)}",
        )
    return JobRequest(
        project=context.settings.project.name,
        kind=MAINTENANCE,
        name=str(target),
        resource=table_resource(context, target),
        payload=_payload(target, order, actor),
        max_attempts=context.settings.worker.max_attempts,
        priority=priority,
        lock_at=lock_at,
        unique_key=unique_key,
        idempotency_key=idempotency_key,
    )


def submit_maintenance(
    context: Context,
    control: Connection,
    target: Endpoint,
    order: ActionList,
    *,
    actor: str,
    idempotency_key: str | None = None,
    lock_at: LockAt = LockAt.SUBMIT,
    priority: int = 0,
    unique_key: str | None = None,
) -> Submission:
    """Queue it for a worker; that the table is locked or nothing is taken in is for the caller.

    UsageError where the idempotency key was used for something else.
    """
    request = maintenance_request(
        context,
        target,
        order,
        actor=actor,
        lock_at=lock_at,
        priority=priority,
        unique_key=unique_key,
        idempotency_key=idempotency_key,
    )
    return Jobs(context.plane).submit(control, request, actor)


def table_holder(context: Context, control: Connection, target: Endpoint) -> Holder | None:
    """Who has the table now; None when it is free."""
    return Jobs(context.plane).holder(control, table_resource(context, target))


def record_dry_run(
    context: Context,
    control: Connection,
    target: Endpoint,
    order: ActionList,
    effects: Mapping[Action, Effect],
    *,
    actor: str,
    idempotency_key: str | None = None,
) -> UUID:
    """Keep what was predicted as a job that is done; it never locked, fenced or waited.

    The same idempotency key gives the same job; what is predicted may have changed since.
    """
    result: dict[str, Any] = {
        "dry_run": True,
        "predicted": {action.value: asdict(effect) for action, effect in effects.items()},
    }
    row = control.execute(
        context.plane.statement("jobs/jobs", "record_done"),
        {
            "job_id": new_job_id(),
            "project": context.settings.project.name,
            "kind": MAINTENANCE,
            "name": str(target),
            "payload": Jsonb(_payload(target, order, actor) | {"dry_run": True}),
            "result": Jsonb(result),
            "idempotency_key": idempotency_key,
            "actor": actor,
        },
    ).fetchone()
    if row is not None:
        return UUID(str(row[0]))
    assert idempotency_key is not None
    return _recorded_before(context, control, target, order, actor, idempotency_key)


def _recorded_before(
    context: Context,
    control: Connection,
    target: Endpoint,
    order: ActionList,
    actor: str,
    idempotency_key: str,
) -> UUID:
    row = control.execute(
        context.plane.statement("jobs/jobs", "find_by_idempotency_key"),
        {
            "project": context.settings.project.name,
            "kind": MAINTENANCE,
            "name": str(target),
            "resource": None,
            "payload": Jsonb(_payload(target, order, actor) | {"dry_run": True}),
            "idempotency_key": idempotency_key,
        },
    ).fetchone()
    assert row is not None
    job_id, kind, name, is_same = row
    if not is_same:
        raise KeyReused(
            f"the idempotency key {idempotency_key!r} was given to job {job_id}, which asks for "
            f"something else ({kind} {name})",
            "use a new key for new work",
        )
    return UUID(str(job_id))


def _payload(target: Endpoint, order: ActionList, actor: str) -> dict[str, Any]:
    return {"target": str(target), "order": order.document(), "requested_by": actor}


def predict_actions(
    context: Context, target: Endpoint, order: ActionList, *, now: datetime
) -> dict[Action, Effect]:
    """What each action would do to the table as it is; no Spark is started."""
    return {
        action: predict_action(context, target, action, options, now=now)
        for action, options in order.steps
    }


def predict_cheaply(
    context: Context, target: Endpoint, order: ActionList, *, now: datetime
) -> dict[Action, Effect]:
    """The same without what needs a list of all files, and without what cannot be told."""
    found: dict[Action, Effect] = {}
    for action, options in order.steps:
        if action is Action.REMOVE_ORPHAN_FILES:
            continue
        try:
            found[action] = predict_action(context, target, action, options, now=now)
        except TidegateError as error:
            log.info("not_predicted", action=action.value, error=error.message)
    return found


def predict_action(
    context: Context, target: Endpoint, action: Action, options: ActionOptions, *, now: datetime
) -> Effect:
    """What one action would do; what others still need stays, as it does when it is done."""
    before = None
    if isinstance(options, ExpireSnapshots):
        options = _without_needed(context, target, options, now)
    if isinstance(options, RemoveOrphanFiles):
        before = _orphans_before(context, options)
    catalog = context.catalog(target.connection)
    return predict(catalog, target.relation, action, options, now=now, orphans_before=before)


def _without_needed(
    context: Context, target: Endpoint, options: ExpireSnapshots, now: datetime
) -> ExpireSnapshots:
    destination = context.destination(target)
    if not isinstance(destination, IcebergTarget):
        raise DestinationError(f"{target} is no table of a lake", "name one that is")
    return bound_expiry(context, destination, options, now).options


def _orphans_before(context: Context, options: RemoveOrphanFiles) -> datetime | None:
    with context.databases.lease(CONTROL) as control:
        row = control.execute(
            context.plane.statement("maintenance/orphan_files", "orphans_before"),
            {"age": options.older_than_seconds + MARGIN_SECONDS, "margin": MARGIN_SECONDS},
        ).fetchone()
    return None if row is None else row[0]
