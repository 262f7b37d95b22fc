"""Jobs as people and programs see them: the one reader behind the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.control.job_history import AuditLine, JobAttempt, JobHistory
from tidegate.control.job_lists import JobLine, JobLists, LaterJob
from tidegate.control.job_records import JobAction, JobRecord, JobRecords
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.errors import UsageError
from tidegate.insight.control_session import control_session
from tidegate.insight.job_ids import find_job
from tidegate.insight.queue import QueueStatus, read_queue
from tidegate.model.job import KINDS, Holder, JobStatus
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext

MOST = 100_000


@dataclass(frozen=True, slots=True)
class JobListing:
    """Some jobs, the newest first, and the whole queue in numbers."""

    jobs: tuple[JobLine, ...]
    queue: QueueStatus


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Everything that is known of one job."""

    line: JobLine
    record: JobRecord
    attempts: tuple[JobAttempt, ...]
    actions: tuple[JobAction, ...]
    audit: tuple[AuditLine, ...]
    later: tuple[LaterJob, ...]
    lock_holder: Holder | None
    queue: QueueStatus

    @property
    def retried_as(self) -> UUID | None:
        """The newest job that was made to do this one's work again."""
        again = [one.job_id for one in self.later if one.retry_of == self.record.job_id]
        return again[0] if again else None

    @property
    def made_good_by(self) -> UUID | None:
        """A later job of the same name that succeeded."""
        done = [one.job_id for one in self.later if one.status is JobStatus.DONE]
        return done[0] if done else None

    @property
    def loads(self) -> tuple[JobAction, ...]:
        return tuple(one for one in self.actions if one.action == "load")

    @property
    def rows(self) -> int:
        return sum(int(one.detail.get("rows", 0)) for one in self.loads)


def list_jobs(
    context: JobContext,
    *,
    statuses: Sequence[JobStatus] | None = None,
    kinds: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    limit: int | None = 20,
) -> JobListing:
    """The newest jobs of the project; `limit` None means all of them."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise UsageError(
                f"there is no kind of job {kind!r}", f"one of {', '.join(sorted(KINDS))}"
            )
    if limit is not None and not 1 <= limit <= MOST:
        raise UsageError(f"a list of {limit} jobs", f"give a number from 1 to {MOST:,}")
    project = context.settings.project.name
    with control_session(context) as connection:
        if connection is None:
            return JobListing((), QueueStatus())
        found = JobLists(context.plane).newest(
            connection,
            project,
            statuses=statuses or None,
            kinds=kinds or None,
            names=names or None,
            limit=limit,
        )
        return JobListing(tuple(found), read_queue(context.plane, connection, project))


def show_job(context: JobContext, text: str) -> JobDetail:
    """One job by its id or the beginning of it."""
    with control_session(context) as connection:
        job_id = find_job(context, connection, text)
        assert connection is not None
        return read_job(context.plane, connection, context.settings.project.name, job_id)


def read_job(plane: ControlPlane, connection: Connection, project: str, job_id: UUID) -> JobDetail:
    """Everything of one job, as of one moment."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        record = JobRecords(plane).get(connection, job_id)
        lines = JobLists(plane).newest(connection, project, job_ids=[job_id])
        if record is None or not lines:
            raise UsageError(f"there is no job {job_id}", "see the ids with: tidegate job list")
        holder = None
        if record.resource is not None and not record.status.is_terminal:
            holder = Jobs(plane).holder(connection, record.resource)
        history = JobHistory(plane)
        return JobDetail(
            line=lines[0],
            record=record,
            attempts=tuple(history.attempts(connection, job_id)),
            actions=tuple(JobRecords(plane).actions(connection, job_id)),
            audit=tuple(history.audit(connection, job_id)),
            later=tuple(
                JobLists(plane).later(
                    connection,
                    project=project,
                    kind=record.kind,
                    name=record.name,
                    job_id=job_id,
                    submitted_at=record.submitted_at,
                )
            ),
            lock_holder=holder,
            queue=read_queue(plane, connection, project),
        )


def count_published(context: JobContext, detail: JobDetail) -> int:
    """How many loads of a job are in its table.

    The last one may have been published without its attempt living to write that down; its marker
    tells.
    """
    recorded = {str(one.detail.get("update_id")) for one in detail.loads}
    planned: dict[str, Any] = detail.record.plan or detail.record.payload
    last, target = planned.get("update_id"), detail.record.payload.get("target")
    if last is None or target is None or str(last) in recorded:
        return len(recorded)
    endpoint = Endpoint.parse(str(target))
    return len(recorded) + context.destination(endpoint).exists(str(last))
