"""Getting hold of a destination table: free it from the dead, submit a job, claim it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidegate.control.cancels import Cancels
from tidegate.control.dead import DeadAttempt
from tidegate.control.draining import refuse_draining
from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker
from tidegate.errors import BusyError
from tidegate.failpoints import reach
from tidegate.ledger.fences import FencedTable
from tidegate.model.job import Claim, JobRequest, JobStatus, Submitted
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.runtime.cancel import end_cancel
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.lease import now
from tidegate.runtime.reclaim import reclaim_dead

_SUBMIT_TRIES = 3
_WAIT = "wait until it has finished, then try again"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job of ours; `since` is when its claim was sent, by our own clock."""

    claim: Claim
    heartbeat: Heartbeat
    since: float


def table_resource(context: JobContext, target: Endpoint) -> str:
    """What a job on this table locks, however many names lead to it."""
    return context.destination(target).identify()


def open_heartbeat(context: JobContext, command: str) -> Heartbeat:
    """The heartbeat of a process that works its own jobs; it joins with the first of them."""
    settings = context.settings
    return Heartbeat(
        context.plane,
        Worker.of_this_process(settings.project.name, command),
        lease_seconds=settings.worker.lease_seconds,
        interval_seconds=settings.worker.heartbeat_seconds,
    )


def claim_table(
    context: JobContext,
    control: Connection,
    destination: FencedTable | None,
    target: Endpoint | str,
    request: JobRequest,
    heartbeat: Heartbeat,
    *,
    actor: str,
    take_over: bool = False,
) -> Claimed:
    """Submit and claim; BusyError names who has the table, or whatever else is claimed.

    What a dead process left is freed first. A job that nobody works on is taken up when it asks
    for the same work, so that its stored plan is used again; otherwise it gives way.
    """
    control_id = context.control_id()
    if take_over and destination is not None and isinstance(target, Endpoint):
        destination.ledger.ensure()
        with destination.open() as connection:
            destination.fences.seize(connection, str(target.relation), control_id)

    def destination_of(dead: DeadAttempt) -> FencedTable | None:
        if dead.resource == request.resource:
            return destination
        return context.destination(Endpoint.parse(dead.payload["target"]))

    reclaim_dead(
        context.plane,
        control,
        control_id,
        destination_of,
        actor=actor,
        backoff=context.settings.worker.backoff,
        resource=request.resource,
    )
    for half in Cancels(context.plane).list_half_done(control, request.project):
        if half.resource == request.resource:
            end_cancel(context, control, half, actor=actor)
    heartbeat.join()
    since = now()
    claim = _submit_and_claim(context, control, heartbeat, request, target, actor)
    if claim is None:
        holder = Jobs(context.plane).holder(control, str(request.resource))
        raise BusyError(f"{target} was taken a moment ago by {holder or 'another process'}", _WAIT)
    reach("job.claimed")
    return Claimed(claim, heartbeat, since)


def _submit_and_claim(
    context: JobContext,
    control: Connection,
    heartbeat: Heartbeat,
    request: JobRequest,
    target: Endpoint | str,
    actor: str,
) -> Claim | None:
    jobs, worker_id = Jobs(context.plane), heartbeat.worker.worker_id
    for _ in range(_SUBMIT_TRIES):
        # In one transaction: no worker sees a job that was never meant for it. Others wait for
        # its end, so that one who is stopped in it must not keep them.
        with control.transaction():
            control.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
            submitted = jobs.submit(control, request, actor, announce=False)
            if submitted.job_id is not None:
                reach("job.submitted")
                return jobs.claim(
                    control, worker_id, submitted.job_id, lease_seconds=heartbeat.lease_seconds
                )
        if submitted.outcome is Submitted.DRAINING:
            refuse_draining(context.plane, control)
            continue
        waiting = _waiting_job(jobs, control, request, target, actor)
        if waiting is not None:
            return jobs.claim(control, worker_id, waiting, lease_seconds=heartbeat.lease_seconds)
    raise BusyError(f"{target} is wanted by several processes at once", "try again")


def _waiting_job(
    jobs: Jobs, control: Connection, request: JobRequest, target: Endpoint | str, actor: str
) -> UUID | None:
    """The job that has the table and that nobody works on, if it is for the same work."""
    holder = jobs.holder(control, str(request.resource))
    if holder is None:
        return None
    if holder.status is not JobStatus.PENDING:
        raise BusyError(f"{target} is held by {holder}", _WAIT)
    if holder.name == request.name and holder.payload == request.payload:
        return holder.job_id
    jobs.drop_pending(control, holder.job_id, actor, f"superseded by {actor}: {request.name}")
    return None
