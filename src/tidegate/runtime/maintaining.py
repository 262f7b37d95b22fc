"""Submitting maintenance of a lake's table, and keeping what a dry run foretold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.control.jobs import Jobs
from tidegate.errors import KeyReused, UsageError
from tidegate.model.identity import new_job_id
from tidegate.model.job import MAINTENANCE, Holder, JobRequest, LockAt, Submission
from tidegate.model.maintenance import Action, Effect, Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.runtime.claiming import table_resource


def maintenance_request(
    context: Context,
    target: Endpoint,
    order: Order,
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
    order: Order,
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
    order: Order,
    effects: Mapping[Action, Effect],
    *,
    actor: str,
    idempotency_key: str | None = None,
) -> UUID:
    """Keep what was foretold as a job that is done; it never locked, fenced or waited.

    The same idempotency key gives the same job; what is foretold may have changed since.
    """
    result: dict[str, Any] = {
        "dry_run": True,
        "predicted": {action.value: asdict(effect) for action, effect in effects.items()},
    }
    row = control.execute(
        context.plane.statement("jobs", "record_done"),
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
    order: Order,
    actor: str,
    idempotency_key: str,
) -> UUID:
    row = control.execute(
        context.plane.statement("jobs", "find_by_idempotency_key"),
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


def _payload(target: Endpoint, order: Order, actor: str) -> dict[str, Any]:
    return {"target": str(target), "order": order.document(), "requested_by": actor}
