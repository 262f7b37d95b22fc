"""Getting hold of a destination table: free it from the dead, submit a job, claim it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidegate.control.jobs import DeadAttempt, Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import BusyError
from tidegate.failpoints import reach
from tidegate.model.identity import resource_name
from tidegate.model.job import Claim, JobRequest, JobStatus
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connect import Connection
from tidegate.runtime.reclaim import reclaim_dead
from tidegate.version import __version__

_SUBMIT_TRIES = 3
_WAIT = "wait until it has finished, then try again"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job of ours; `session` holds the worker's advisory lock for as long as it is open."""

    claim: Claim
    worker: Worker
    session: Connection


def table_resource(context: Context, target: Endpoint) -> str:
    """What a job on this table locks, however many names lead to it."""
    with context.databases.lease(target.connection) as connection:
        return resource_name(database_identity(connection), target.relation)


def claim_table(
    context: Context,
    control: Connection,
    destination: PostgresDestination,
    target: Endpoint,
    request: JobRequest,
    *,
    actor: str,
    take_over: bool = False,
) -> Claimed:
    """Submit and claim; BusyError names who has the table.

    What a dead process left is freed first. A job that nobody works on is taken up when it asks
    for the same work, so that its stored plan is used again; otherwise it gives way.
    """
    jobs = Jobs(context.plane)
    control_id = context.control_id()
    if take_over:
        destination.ledger.ensure()
        with destination.open() as connection:
            destination.fences.seize(connection, str(target.relation), control_id)

    def destination_of(dead: DeadAttempt) -> PostgresDestination:
        if dead.resource == request.resource:
            return destination
        return context.destination(Endpoint.parse(dead.payload["target"]))

    reclaim_dead(jobs, control, control_id, destination_of, actor=actor, resource=request.resource)
    worker = Worker.of_this_process()
    session = context.plane.connect()
    try:
        Workers(context.plane).register(session, worker, __version__)
        job_id = _submit(jobs, control, request, target, actor)
        reach("job.submitted")
        lease = context.settings.worker.lease_seconds
        claim = jobs.claim(control, worker.worker_id, lease_seconds=lease, job_id=job_id)
        if claim is None:
            holder = jobs.holder(control, request.resource)
            raise BusyError(
                f"{target} was taken a moment ago by {holder or 'another process'}", _WAIT
            )
    except BaseException:
        session.close()
        raise
    reach("job.claimed")
    return Claimed(claim, worker, session)


def _submit(
    jobs: Jobs, control: Connection, request: JobRequest, target: Endpoint, actor: str
) -> UUID:
    for _ in range(_SUBMIT_TRIES):
        job_id = jobs.submit(control, request, actor)
        if job_id is not None:
            return job_id
        holder = jobs.holder(control, request.resource)
        if holder is None:
            continue
        if holder.status is not JobStatus.PENDING:
            raise BusyError(f"{target} is held by {holder}", _WAIT)
        if holder.name == request.name and holder.payload == request.payload:
            return holder.job_id
        jobs.drop_pending(control, holder.job_id, actor, f"superseded by {actor}: {request.name}")
    raise BusyError(f"{target} is wanted by several processes at once", "try again")
