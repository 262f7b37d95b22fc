"""Maintenance as a job: worked by whoever has claimed it, or submitted and worked here and now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.control.job_records import JobAction, JobRecords
from tidegate.control.workers import user_name
from tidegate.errors import CommitUnknown, MaintenanceFailed, TidegateError, UsageError
from tidegate.model.maintenance import Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.pipeline.maintenance import Maintenance
from tidegate.pipeline.maintenance_engine import engine_of
from tidegate.runtime.claiming import Claimed, claim_table, open_heartbeat
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.maintaining import maintenance_request
from tidegate.runtime.working import ClaimedWork


@dataclass(frozen=True, slots=True)
class Maintained:
    """How it ended: `done`, `failed` with an error, or `stale` when another took over."""

    job_id: UUID
    status: str
    actions: list[JobAction]
    error: TidegateError | None = None


def read_order(name: str, payload: dict[str, Any]) -> Order:
    """What a job asks for; UsageError where nobody could have meant it."""
    try:
        order = Order.read(payload["order"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the job {name} is malformed: its order cannot be read ({error})",
            "submit it again with: tidegate table maintain TABLE",
        ) from None
    if not order.steps:
        raise UsageError(f"the job {name} is malformed: it names no action", "name one at least")
    return order


def work_maintenance(context: Context, claimed: Claimed) -> bool:
    """Work a claimed job to its end; False when another attempt took over."""
    claim = claimed.claim
    target = Endpoint.parse(claim.payload["target"])
    engine = engine_of(context)
    work = Maintenance(context, target, read_order(claim.name, claim.payload), engine)
    with context.plane.connect() as control:
        claimed_work = ClaimedWork(
            context=context,
            control=control,
            destination=context.destination(target),
            claimed=claimed,
            actor=f"{user_name()} ({claimed.heartbeat.worker.command})",
            what=f"maintenance of {target}",
            interrupt=lambda: engine.interrupt(claim.attempt_id),
        )
        try:
            return claimed_work.run(work.run)
        except TidegateError as error:
            if error.permanent or isinstance(error, CommitUnknown):
                raise
            # The job has ended as failed: whoever sees this must not wait for another attempt.
            raise MaintenanceFailed(error.message, error.hint) from error


def maintain_here(
    context: Context,
    target: Endpoint,
    order: Order,
    *,
    actor: str,
    command: str = "tidegate table maintain",
    heartbeat: Heartbeat | None = None,
) -> Maintained:
    """Submit, claim and work in this process; BusyError names who has the table."""
    if heartbeat is None:
        with open_heartbeat(context, command) as own:
            return _maintain(context, target, order, actor, own)
    return _maintain(context, target, order, actor, heartbeat)


def _maintain(
    context: Context, target: Endpoint, order: Order, actor: str, heartbeat: Heartbeat
) -> Maintained:
    context.control_id()  # so that there is a control plane to connect to
    with context.plane.connect() as control:
        claimed = claim_table(
            context,
            control,
            context.destination(target),
            target,
            maintenance_request(context, target, order, actor=actor),
            heartbeat,
            actor=actor,
        )
        job_id = claimed.claim.job_id
        error = None
        try:
            status = "done" if work_maintenance(context, claimed) else "stale"
        except TidegateError as found:
            status, error = "failed", found
        actions = JobRecords(context.plane).actions(control, job_id)
    return Maintained(job_id, status, actions, error)
