"""Submit and claim for a table, or a worker's next jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidegate.core.errors import BusyError
from tidegate.core.failpoints import reach
from tidegate.core.relation import Endpoint
from tidegate.jobs.cancel import Cancels, end_cancel
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.drain import refuse_draining
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import Claim, Ending, JobRequest, JobStatus, Submitted
from tidegate.jobs.lease import now
from tidegate.jobs.queue import Jobs, claim_parameters, finish_parameters, read_claims
from tidegate.jobs.reclaim import LostAttempt, reclaim_lost
from tidegate.jobs.worker_records import WorkerIdentity
from tidegate.ledger.fences import FencedTable
from tidegate.postgres.connection import Connection

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
        WorkerIdentity.of_this_process(settings.project.name, command),
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

    def destination_of(dead: LostAttempt) -> FencedTable | None:
        if dead.resource == request.resource:
            return destination
        return context.destination(Endpoint.parse(dead.payload["target"]))

    reclaim_lost(
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


@dataclass(frozen=True, slots=True)
class WorkerTurn:
    """Which endings were ours to write, by attempt, and what was claimed."""

    won: set[str]
    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class WorkerTurns:
    """The turns of one worker."""

    plane: ControlDatabase
    worker_id: str
    project: str
    kinds: tuple[str, ...]
    lease_seconds: float

    def take(self, connection: Connection, endings: Sequence[Ending], limit: int) -> WorkerTurn:
        """Both in one statement: round trips and commits are what costs most."""
        if not limit:
            return WorkerTurn(self.finish(connection, endings), [])
        if not endings:
            return WorkerTurn(set(), self.claim(connection, limit))
        rows = connection.execute(
            self.plane.turning(limit),
            finish_parameters(endings, self.worker_id)
            | claim_parameters(self.plane, self.worker_id, self.lease_seconds)
            | {"project": self.project, "kinds": list(self.kinds)},
        ).fetchall()
        won, needed, freed = rows[0][:3]
        picked = [row[3:] for row in rows]
        claims = read_claims(picked)
        jobs = Jobs(self.plane)
        if needed:
            jobs.settle(connection, needed)
        limited = [row for row in picked if row[0]]
        if limited:
            claims += jobs.claim_limited(
                connection,
                self.worker_id,
                limited,
                project=self.project,
                lease_seconds=self.lease_seconds,
            )
        if not claims and (needed or freed):
            # The endings have made something ready that the statement could not see.
            claims = self.claim(connection, limit)
        return WorkerTurn(set(won or ()), claims)

    def claim(self, connection: Connection, limit: int) -> list[Claim]:
        return Jobs(self.plane).claim_ready(
            connection,
            self.worker_id,
            project=self.project,
            kinds=self.kinds,
            lease_seconds=self.lease_seconds,
            limit=limit,
        )

    def finish(self, connection: Connection, endings: Sequence[Ending]) -> set[str]:
        if not endings:
            return set()
        return Jobs(self.plane).finish_many(connection, endings, actor=self.worker_id)
