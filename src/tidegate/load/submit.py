"""Queue a sync: by hand, by schedule, once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.config.sync import Sync
from tidegate.core.errors import BusyError, UsageError
from tidegate.core.log import log
from tidegate.jobs.drain import refuse_draining
from tidegate.jobs.job import PUBLISH, JobRequest, JobStatus, LockAt, Submission, Submitted
from tidegate.jobs.job_records import JobRecord
from tidegate.jobs.lease import now
from tidegate.jobs.queue import Jobs
from tidegate.jobs.scheduler import Enqueue, Enqueued, Prepare, why_disabled
from tidegate.jobs.schedules import Scheduled, Schedules, TickOutcome
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_target
from tidegate.load.runner import RunOptions, sync_request
from tidegate.load.sources.registry import open_source
from tidegate.postgres.connection import Connection

PRIORITIES = range(-1_000, 1_001)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """When a queued job is to run, and how urgently."""

    priority: int = 0
    visible_at: datetime | None = None
    delay_seconds: float = 0.0
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise UsageError(
                f"priority {self.priority} is out of range",
                f"give a number from {PRIORITIES[0]} to {PRIORITIES[-1]}; higher ones go first",
            )
        if self.visible_at is not None and self.visible_at.tzinfo is None:
            raise UsageError(
                f"{self.visible_at} has no time zone", "add one, such as +00:00, or tzinfo=UTC"
            )
        if self.visible_at is not None and self.delay_seconds:
            raise UsageError("a time and a delay were both given", "give one of them")
        if self.idempotency_key is not None and not self.idempotency_key.strip():
            raise UsageError("the idempotency key is empty", "give a text of your own, or none")


def submit_sync(
    context: Context, sync: Sync, options: RunOptions, order: QueueOptions, *, actor: str
) -> Submission:
    """Queue a sync for a worker; a bad declaration is refused now rather than there.

    One that is queued or at work already is not queued twice.
    """
    context.control_id()  # so that there is a control plane to connect to
    with context.plane.connect() as control:
        refuse_draining(context.plane, control)
        with open_source(context, sync):
            pass
        refuse_changed_target(context, control, sync)
        request = replace(
            sync_request(context, sync, options),
            lock_at=LockAt.CLAIM,
            unique_key=f"sync:{sync.name}",
            priority=order.priority or sync.priority,
            visible_at=order.visible_at,
            delay_seconds=order.delay_seconds,
            idempotency_key=order.idempotency_key,
        )
        return _submit(context, control, request, actor)


def retry_job(
    context: Context, control: Connection, record: JobRecord, *, actor: str
) -> Submission:
    """Queue the work of a job that failed or was cancelled once more, as a new job."""
    what = f"job {record.job_id} ({record.kind} {record.name})"
    if record.status not in (JobStatus.FAILED, JobStatus.CANCELLED):
        raise UsageError(
            f"{what} is {record.status}; only a failed or cancelled job is retried, nothing was "
            "changed",
            f"see how it stands with: tidegate job show {record.job_id}",
        )
    if record.kind == PUBLISH:
        raise UsageError(
            f"{what} published a DataFrame, which is not kept; nothing was changed",
            "run its script again, with the same update_id: what is in stays in once",
        )
    if "command" in record.payload:
        raise UsageError(
            f"{what} is a command of a person, not work for a worker; nothing was changed",
            f"give it again: {record.payload['command']} {record.name}",
        )
    refuse_draining(context.plane, control)
    request = JobRequest(
        project=record.project,
        kind=record.kind,
        name=record.name,
        resource=record.resource,
        payload=record.payload,
        max_attempts=record.max_attempts,
        priority=record.priority,
        lock_at=LockAt(record.lock_at),
        unique_key=record.unique_key,
        retry_of=record.job_id,
        limits=tuple(record.limits or ()),
    )
    return _submit(context, control, request, actor)


def _submit(context: Context, control: Connection, request: JobRequest, actor: str) -> Submission:
    jobs = Jobs(context.plane)
    submitted = jobs.submit(control, request, actor)
    if submitted.job_id is not None:
        return submitted
    if submitted.outcome is Submitted.DRAINING:
        refuse_draining(context.plane, control)
    holder = None if request.resource is None else jobs.holder(control, request.resource)
    raise BusyError(
        f"{request.name} was not queued: its table is held by {holder or 'another job'}",
        "wait until that one has finished, then try again",
    )


_FRESH_SECONDS = 5.0


def prepare_syncs(context: Context, expand: Callable[[str], Sequence[Sync]]) -> Prepare:
    """What a scheduler does for syncs; `expand` gives the tables that a name stands for."""
    known: dict[str, tuple[float, Enqueue]] = {}

    def prepare(scheduled: Scheduled, tick: datetime) -> Enqueue:
        # Many ticks that are caught up with at once need not ask the source each.
        made_at, made = known.get(scheduled.name, (0.0, None))
        if made is None or now() - made_at > _FRESH_SECONDS:
            made = prepare_now(scheduled)
            known[scheduled.name] = now(), made
        return made

    def prepare_now(scheduled: Scheduled) -> Enqueue:
        requests, refused = [], []
        for sync in expand(scheduled.name):
            if sync.refused is None:
                requests.append(scheduled_request(context, sync))
            elif not sync.refused.permanent:
                # It may be well again in a moment, and the tick is still due then.
                raise sync.refused
            else:
                log.warning("sync_not_queued", name=sync.name, error=sync.refused.message)
                refused.append(sync.refused.message)

        def enqueue(control: Connection, actor: str) -> Enqueued:
            if not requests:
                reason = refused[0] if refused else "it stands for no table"
                return Enqueued(TickOutcome.FAILED, detail=reason)
            due, disabled = _not_disabled(context, control, scheduled, requests)
            if not due:
                return Enqueued(TickOutcome.DISABLED, detail=disabled)
            return submit_all(context, control, due, actor)

        return enqueue

    return prepare


def _not_disabled(
    context: Context, control: Connection, scheduled: Scheduled, requests: Sequence[JobRequest]
) -> tuple[list[JobRequest], str | None]:
    """The tables of a group that did not fail too often, and why another is left out.

    What is scheduled under its own name was judged before.
    """
    clock = Schedules(context.plane, context.settings.project.name).clock(control)
    due, reason = [], None
    for request in requests:
        table = replace(scheduled, name=request.name)
        why = None if table == scheduled else why_disabled(context, control, table, clock)
        if why is None:
            due.append(request)
        else:
            reason = f"{request.name}: {why}"
    return due, reason


def scheduled_request(context: Context, sync: Sync) -> JobRequest:
    """The job of a sync that nobody waits for: it takes its table when it starts."""
    return replace(
        sync_request(context, sync, RunOptions()),
        lock_at=LockAt.CLAIM,
        unique_key=f"sync:{sync.name}",
        priority=sync.priority,
    )


def submit_all(
    context: Context, control: Connection, requests: Sequence[JobRequest], actor: str
) -> Enqueued:
    """Queue those whose last run has ended, in the caller's transaction."""
    found = [submit_one(context, control, request, actor) for request in requests]
    queued = [one for one in found if one.outcome is Submitted.QUEUED]
    detail = f"{len(queued)} of {len(found)} queued" if len(found) > 1 else None
    if queued:
        return Enqueued(TickOutcome.QUEUED, queued[0].job_id, detail)
    return Enqueued(TickOutcome.COALESCED, found[0].job_id, detail)


def submit_one(
    context: Context, control: Connection, request: JobRequest, actor: str
) -> Submission:
    submitted = Jobs(context.plane).submit(control, request, actor)
    if submitted.job_id is None:
        refuse_draining(context.plane, control)
        raise BusyError(f"{request.name} was not queued: {submitted.outcome}", "try again")
    return submitted
