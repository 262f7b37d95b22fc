"""Jobs and the queue as people and programs see them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.core.errors import UsageError
from tidegate.core.relation import Endpoint
from tidegate.jobs.context import JobContext, control_session
from tidegate.jobs.control_database import ControlDatabase, DrainState
from tidegate.jobs.job import KINDS, SYNC, Holder, JobState, JobStatus, ended_by
from tidegate.jobs.job_records import (
    AuditLine,
    JobAction,
    JobAttempt,
    JobHistory,
    JobLine,
    JobLists,
    JobRecord,
    JobRecords,
    LaterJob,
)
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerStatus, kinds_taken, read_workers
from tidegate.postgres.connection import Connection

_DIGITS = 32
_SHOWN = 10
# The digits up to here are the millisecond of the submission; with its dash one more character.
_SHORTEST = 13


def find_job(context: JobContext, connection: Connection | None, text: str) -> UUID:
    """The job of this project that an id means; UsageError when none or several do."""
    lowest, highest = id_range(text)
    project = context.settings.project.name
    found = (
        []
        if connection is None
        else JobLists(context.plane).find(connection, project, lowest, highest, _SHOWN + 1)
    )
    if not found:
        raise UsageError(
            f"there is no job {text} of project {project}; nothing was changed",
            "see the ids with: tidegate job list",
        )
    if len(found) > 1:
        shown = [f"{one.job_id} ({one.kind} {one.name}, {one.status})" for one in found[:_SHOWN]]
        more = ", and more" if len(found) > _SHOWN else ""
        raise UsageError(
            f"{text} is the beginning of several jobs: {', '.join(shown)}{more}",
            "give more of the id",
        )
    return found[0].job_id


def id_range(text: str) -> tuple[UUID, UUID]:
    """The lowest and the highest id that begin like this.

    >>> id_range("019a-8")[1]
    UUID('019a8fff-ffff-ffff-ffff-ffffffffffff')
    """
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        raise UsageError(
            f"{text!r} is not the id of a job; nothing was changed",
            "an id has up to 32 digits from 0 to f; see: tidegate job list",
        )
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))


def short_ids(ids: Collection[UUID]) -> dict[UUID, str]:
    """The shortest beginnings that tell these jobs apart."""
    texts = {job_id: str(job_id) for job_id in ids}
    length = _SHORTEST
    while length < 36 and len({text[:length] for text in texts.values()}) < len(texts):
        length += 1
    return {job_id: text[:length].rstrip("-") for job_id, text in texts.items()}


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How many jobs wait and run; `unserved` are those that could start if a worker took them."""

    ready: int = 0
    later: int = 0
    next_at: datetime | None = None
    running: int = 0
    failed_lately: int = 0
    unserved: tuple[tuple[str, int], ...] = ()
    draining: DrainState | None = None
    workers: tuple[WorkerStatus, ...] = ()

    @property
    def is_worth_a_line(self) -> bool:
        return bool(self.ready or self.later or self.failed_lately or self.draining)

    def lines(self) -> list[str]:
        """What a person should know, most urgent last."""
        parts = [f"{self.ready} waiting"]
        if self.later:
            when = f", the next at {self.next_at:%Y-%m-%d %H:%M:%S} UTC" if self.next_at else ""
            parts.append(f"{self.later} waiting for a later time{when}")
        parts.append(f"{self.running} running")
        if self.failed_lately:
            parts.append(
                f"{self.failed_lately} failed in the last day and not made good since "
                "(tidegate job list --status failed)"
            )
        found = ["; ".join(parts)]
        if self.draining is not None:
            found.append(
                f"draining since {self.draining.since:%Y-%m-%d %H:%M:%S} UTC by "
                f"{self.draining.by}: no new jobs are taken in; let them in again with: "
                "tidegate drain off"
            )
        for kind, count in self.unserved:
            found.append(
                f"{count} {'job waits' if count == 1 else 'jobs wait'} and no worker takes "
                f"{kind}: start one with: tidegate worker"
            )
        return found


def read_queue(plane: ControlDatabase, connection: Connection, project: str) -> QueueStatus:
    """Count what is unfinished, and look who is there to do it."""
    lists = JobLists(plane)
    counts = lists.count_queue(connection, project)
    workers = read_workers(plane, connection, project)
    taken = kinds_taken(workers)
    return QueueStatus(
        ready=sum(one.ready for one in counts),
        later=sum(one.later for one in counts),
        next_at=min((one.next_at for one in counts if one.next_at is not None), default=None),
        running=sum(one.running for one in counts),
        failed_lately=lists.count_failed(connection, project),
        unserved=tuple(
            (one.kind, one.ready) for one in counts if one.ready and one.kind not in taken
        ),
        draining=plane.draining(connection),
        workers=workers,
    )


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


def read_job(
    plane: ControlDatabase, connection: Connection, project: str, job_id: UUID
) -> JobDetail:
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


def advise(detail: JobDetail) -> list[str]:
    """Sentences, in the order in which they matter."""
    line, record = detail.line, detail.record
    cancel = f"to give it up: tidegate job cancel {line.job_id}"
    match line.state:
        case JobState.READY:
            return [_for_a_worker(detail), *_drained(detail), cancel]
        case JobState.LOCKED:
            return [
                f"another job has its table, and it starts when that one ends: tidegate job show "
                f"{line.locked_by}",
                cancel,
            ]
        case JobState.NEEDS:
            return ["it starts when the jobs that it needs are done", cancel]
        case JobState.LATER:
            return [f"its time comes at {_moment(line.visible_at)}", *_drained(detail), cancel]
        case JobState.BACKOFF:
            return [
                f"it is tried again at {_moment(line.visible_at)}; "
                f"{line.error_count} errors and {line.crash_count} crashes so far, "
                + ended_by(line.kind, line.max_attempts),
                cancel,
            ]
        case JobState.RUNNING:
            return [f"to stop it: tidegate job cancel {line.job_id}"]
        case JobState.OVERDUE | JobState.LOST:
            return [
                "it is stuck: the next worker or run takes it over by itself, and after that the "
                "old process can publish nothing" + _by_hand(detail),
                cancel,
            ]
        case JobState.CANCELLING:
            return [
                f"{line.cancel_requested_by} cancels it since {_moment(line.cancel_requested_at)}; "
                "if that process is gone, a worker ends it, or: tidegate job cancel "
                f"{line.job_id}"
            ]
        case JobState.DONE:
            return []
        case JobState.FAILED | JobState.CANCELLED:
            pass
    if detail.retried_as is not None:
        return [f"it was retried: tidegate job show {detail.retried_as}"]
    if detail.made_good_by is not None:
        return [f"a later job of this name is done: {detail.made_good_by}"]
    found = [_why_it_is_over(detail)] if line.state is JobState.FAILED else []
    again = repeat_by_hand(detail)
    found.append(again or f"to have it done again: tidegate job retry {record.job_id}")
    return [*found, *_drained(detail)]


def repeat_by_hand(detail: JobDetail) -> str | None:
    """What to do again for work that lives in a command or a script, not in the queue."""
    record = detail.record
    if "command" in record.payload:
        return f"give the command again: {record.payload['command']} {record.name}"
    if record.kind == "publish":
        return (
            f"the rows of {record.name} came from a DataFrame: run its script again, with the same "
            "update_id"
        )
    return None


def _for_a_worker(detail: JobDetail) -> str:
    if detail.record.kind in kinds_taken(detail.queue.workers):
        return "it waits for a free worker"
    return f"no worker takes {detail.record.kind}: start one with: tidegate worker"


def _by_hand(detail: JobDetail) -> str:
    record = detail.record
    if record.kind == SYNC and "command" not in record.payload:
        return f"; to have it done now: tidegate run {record.name}"
    return ""


def _why_it_is_over(detail: JobDetail) -> str:
    record = detail.record
    if max(record.error_count, record.crash_count) >= record.max_attempts > 1:
        return (
            f"its attempts are used up ({record.error_count} errors, {record.crash_count} "
            f"crashes, at most {record.max_attempts}): it is dead, nobody tries it again"
        )
    return "nobody tries it again by itself: mend what the error says first"


def _drained(detail: JobDetail) -> list[str]:
    if detail.queue.draining is None:
        return []
    if detail.record.status.is_terminal:
        return [f"no new jobs are taken in, by {detail.queue.draining.by}: tidegate drain off"]
    return ["draining does not touch it: what is queued is worked off"]


def _moment(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def line_document(line: JobLine) -> dict[str, Any]:
    """One job of a list."""
    found = asdict(line)
    found.update(
        state=line.state.value, age_seconds=line.age_seconds, duration_seconds=line.duration_seconds
    )
    return found


def queue_document(queue: QueueStatus) -> dict[str, Any]:
    """The queue in numbers; the workers have a place of their own."""
    found = asdict(queue)
    found["unserved"] = dict(queue.unserved)
    del found["workers"]
    return found


def detail_document(detail: JobDetail) -> dict[str, Any]:
    """Everything of one job."""
    return {
        **asdict(detail.record),
        **line_document(detail.line),
        "attempts": [asdict(one) | {"where": one.where} for one in detail.attempts],
        "actions": [asdict(one) for one in detail.actions],
        "audit": [asdict(one) for one in detail.audit],
        "lock": None if detail.lock_holder is None else asdict(detail.lock_holder),
        "retried_as": detail.retried_as,
        "queue": queue_document(detail.queue),
        "advice": advise(detail),
    }
