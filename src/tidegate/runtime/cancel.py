"""Cancelling a job: after the answer, nothing of it is published any more."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidegate.control.cancels import Cancelling, Cancels
from tidegate.control.job_records import JobRecords
from tidegate.control.jobs import Jobs
from tidegate.errors import UsageError
from tidegate.failpoints import reach
from tidegate.model.job import JobStatus
from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.reclaim import fence_out, is_published
from tidegate.runtime.recording import settle_job
from tidegate.runtime.targets import destination_of_job

_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How a cancel ended: cancelled, or done because the publish was quicker."""

    job_id: UUID
    status: JobStatus


def cancel_job(context: JobContext, control: Connection, job_id: UUID, *, actor: str) -> Cancelled:
    """Cancel a job; raise UsageError when there is nothing to cancel.

    A running one is first taken from its attempt, whose worker is told and interrupts its Spark
    work. Then the destination's fence is raised, which waits for a publish that has begun. Only
    then the marker says which of the two won.
    """
    jobs, cancels = Jobs(context.plane), Cancels(context.plane)
    for _ in range(3):
        if jobs.drop_pending(control, job_id, actor, f"cancelled by {actor}"):
            return Cancelled(job_id, JobStatus.CANCELLED)
        cancelling = cancels.request(
            control, job_id, actor=actor, patience_seconds=_PATIENCE_SECONDS
        )
        if cancelling is not None:
            reach("cancel.requested")
            return Cancelled(job_id, end_cancel(context, control, cancelling, actor=actor))
        _refuse_ended(context, control, job_id)
    raise UsageError(f"job {job_id} changes hands faster than it can be cancelled", "try again")


def end_cancel(
    context: JobContext, control: Connection, cancelling: Cancelling, *, actor: str
) -> JobStatus:
    """Fence the destination and end a job whose attempt has been rotated; returns how."""
    destination = destination_of_job(context, cancelling.kind, cancelling.payload)
    published = False
    if destination is not None:
        fence_out(context.plane, control, context.control_id(), destination)
        reach("cancel.fenced")
        published = is_published(destination, None, cancelling.plan, cancelling.payload)
    status = JobStatus.DONE if published else JobStatus.CANCELLED
    Cancels(context.plane).finish(
        control,
        cancelling.job_id,
        status,
        actor=actor,
        error=None if published else f"cancelled by {actor}",
    )
    settle_job(context.plane, control, cancelling.job_id)
    found = JobRecords(context.plane).get(control, cancelling.job_id)
    return status if found is None else found.status


def _refuse_ended(context: JobContext, control: Connection, job_id: UUID) -> None:
    found = JobRecords(context.plane).get(control, job_id)
    if found is None:
        raise UsageError(f"there is no job {job_id}", "see the ids with: tidegate job list")
    if found.status.is_terminal:
        raise UsageError(
            f"job {job_id} ({found.name}) is {found.status} already; nothing was changed",
            "see what it did with: tidegate job show " + str(job_id),
        )
