"""What to do next about a job, for the person at 3 a.m."""

from __future__ import annotations

from datetime import datetime

from tidegate.insight.jobs import JobDetail
from tidegate.insight.workers import kinds_taken
from tidegate.model.job import SYNC, ended_by
from tidegate.model.job_state import JobState


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
