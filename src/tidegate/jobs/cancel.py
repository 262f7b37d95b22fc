"""Cancel a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.core.errors import UsageError
from tidegate.core.failpoints import reach
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.dependencies import Needs
from tidegate.jobs.history.writer import record_lost_attempts
from tidegate.jobs.job import JobStatus
from tidegate.jobs.job_records import JobRecords
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import is_published, raise_fence_above, target_of_job
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class PendingCancel:
    """A job that no attempt may write for any more, and that has not ended yet."""

    job_id: UUID
    kind: str
    name: str
    resource: str | None
    payload: dict[str, Any]
    plan: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Cancels:
    """The store's side of a cancel; between the two steps the destination's fence is raised."""

    plane: ControlDatabase

    def request(
        self, connection: Connection, job_id: UUID, *, actor: str, patience_seconds: float
    ) -> PendingCancel | None:
        """Rotate the attempt and tell its worker; None when nobody works on the job.

        Whoever asked has `patience_seconds` to end it; after that a sweeper does.
        """
        row = connection.execute(
            self.plane.statement("jobs/jobs", "request_cancel"),
            {
                "job_id": job_id,
                "actor": actor,
                "patience": patience_seconds,
                "channel": self.plane.channel("cancels"),
            },
        ).fetchone()
        return None if row is None else PendingCancel(row[0], *row[2:7])

    def finish(
        self,
        connection: Connection,
        job_id: UUID,
        status: JobStatus,
        *,
        actor: str,
        error: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> bool:
        """End a job that is being cancelled; False when another has done so."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "finish_cancel"),
            {
                "job_id": job_id,
                "status": status.value,
                "error": error,
                "result": None if result is None else Jsonb(result),
                "actor": actor,
            },
        ).fetchone()
        if row is not None:
            Needs(self.plane).settle(connection, job_id)
        return row is not None

    def list_half_done(self, connection: Connection, project: str) -> list[PendingCancel]:
        """Jobs whose canceller did not live to end them."""
        rows = connection.execute(
            self.plane.statement("jobs/job_queue", "list_half_cancelled"), {"project": project}
        )
        return [PendingCancel(*row) for row in rows]


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
    context: JobContext, control: Connection, cancelling: PendingCancel, *, actor: str
) -> JobStatus:
    """Fence the destination and end a job whose attempt has been rotated; returns how."""
    destination = target_of_job(context, cancelling.kind, cancelling.payload)
    published = False
    if destination is not None:
        raise_fence_above(context.plane, control, context.control_id(), destination)
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
    record_lost_attempts(context.plane, control, cancelling.job_id)
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
