"""Queueing work for others: a sync, or a job that ended badly once more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.control.draining import refuse_draining
from tidegate.control.job_records import JobRecord
from tidegate.control.jobs import Jobs
from tidegate.errors import BusyError, UsageError
from tidegate.model.job import PUBLISH, JobRequest, JobStatus, LockAt, Submission, Submitted
from tidegate.model.sync import Sync
from tidegate.pipeline.changed import refuse_moved
from tidegate.pipeline.context import Context
from tidegate.pipeline.opening import open_source
from tidegate.postgres.connect import Connection
from tidegate.runtime.runner import RunOptions, sync_request

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
        refuse_moved(context, control, sync)
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
