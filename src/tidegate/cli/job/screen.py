"""How jobs look, followed to their end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

import typer

from tidegate.cli.output import moment, print_line, print_table, span
from tidegate.core.table_actions import Action
from tidegate.core.units import counted, in_bytes
from tidegate.jobs.job import JobState, ended_by

if TYPE_CHECKING:
    from tidegate.jobs.job_records import JobAction, JobLine
    from tidegate.jobs.job_view import JobDetail
    from tidegate.load.context import Context

_ACTIONS = frozenset(one.value for one in Action)


def is_maintenance(action: str) -> bool:
    """Whether a step of a job is an action of maintenance."""
    return action in _ACTIONS


def effect_text(effect: Any) -> str:
    """What changes, as "12 → 1 data files, 4.1 KB → 2 KB"; an effect or its document."""
    if not isinstance(effect, dict):
        from dataclasses import asdict

        effect = asdict(effect)
    before, after = effect["before"], effect["after"]
    text = (
        f"{before['files']:,} → {after['files']:,} {effect['of']}, "
        f"{in_bytes(before['bytes'])} → {in_bytes(after['bytes'])}"
    )
    snapshots = effect.get("snapshots")
    if snapshots:
        return f"{text}, {counted(snapshots, 'snapshot')} fewer"
    rewritten = effect.get("rewritten")
    return (
        f"{text}, {rewritten:,} rewritten" if rewritten and rewritten != before["files"] else text
    )


def action_line(detail: Mapping[str, Any]) -> str:
    """How an action went, and what was predicted."""
    if detail.get("status") != "done" or not detail.get("actual"):
        error = f": {detail['error']}" if detail.get("error") else ""
        return f"{detail.get('status', 'unknown')}{error}"
    predicted = detail.get("predicted")
    expected = "" if not predicted else f"; predicted {effect_text(predicted)}"
    return f"{effect_text(detail['actual'])} in {detail.get('seconds', 0):.1f} s{expected}"


# Of steps, attempts and events the screen shows so many; --json has them all.
_SHOWN_APART = frozenset({"target", "order", "requested_by"})
_MOST = 20


def print_jobs(jobs: Sequence[JobLine]) -> None:
    """A table of jobs, with ids as short as tell them apart."""
    from tidegate.jobs.job_view import short_ids

    ids = short_ids([one.job_id for one in jobs])
    print_table(
        ("id", "kind", "name", "state", "tries", "age", "took", "where", "error"),
        [
            (
                ids[one.job_id],
                one.kind,
                one.name,
                one.state.value,
                f"{one.attempt_count}/{one.max_attempts}",
                span(one.age_seconds),
                "" if one.duration_seconds is None else span(one.duration_seconds),
                where(one),
                (one.error or "").partition("\n")[0],
            )
            for one in jobs
        ],
    )


def where(line: JobLine) -> str:
    """The process that works on a job."""
    if line.worker_id is None:
        return ""
    return f"process {line.pid} on {line.host}" if line.pid is not None else line.worker_id


def print_job(detail: JobDetail) -> None:
    """Everything about one job, the state first and what to do about it last."""
    from tidegate.jobs.job_view import advise

    line, record = detail.line, detail.record
    print_line(f"job {line.job_id}: {line.kind} {line.name}, {line.state.value}")
    for name, value in _facts(detail):
        print_line(f"  {name}: {value}")
    if detail.attempts:
        print_line(f"attempts{_cut(detail.attempts)}:")
        for number, one in list(enumerate(detail.attempts, 1))[-_MOST:]:
            ended = f" to {moment(one.finished_at)}" if one.finished_at else ""
            print_line(
                f"  {number}. {one.outcome or 'at work'}, {one.where}, {moment(one.started_at)}"
                f"{ended}, fence {one.fence}, attempt {one.attempt_id}"
            )
            if one.error:
                print_line("     " + one.error.replace("\n", "; "))
    if detail.actions:
        total = f"{len(detail.loads)} loads, {detail.rows:,} rows"
        print_line(f"steps ({total}){_cut(detail.actions)}:")
        for action in detail.actions[-_MOST:]:
            print_line(f"  {moment(action.finished_at)} {action_text(action)}")
    print_line(f"what happened{_cut(detail.audit)}:")
    for event in detail.audit[-_MOST:]:
        about = f": {event.detail}".replace("\n", "; ") if event.detail else ""
        print_line(f"  {moment(event.at)} {event.event}, {event.actor}{about}")
    if record.error:
        print_line("error:")
        for text in record.error.splitlines():
            print_line(f"  {text.strip()}")
    advice = advise(detail)
    if advice:
        print_line("what to do:")
        for text in advice:
            print_line(f"  {text}")


def action_text(action: JobAction) -> str:
    """One step that a job has done."""
    found = action.detail
    if is_maintenance(action.action):
        return f"{action.action}: {action_line(found)}"
    if action.action != "load":
        return f"{action.action} {pairs(found)}".rstrip()
    rejected = f", {found['rejected']:,} rejected" if found.get("rejected") else ""
    return (
        f"load {action.position}: {found.get('rows', 0):,} rows, {found.get('changed', 0):,} "
        f"changed{rejected}, {found.get('batch', '')}, {found.get('seconds', 0):.1f} s"
    )


def pairs(values: dict[str, Any]) -> str:
    """Values of a document in one line, without those that say nothing."""
    return ", ".join(
        name if value is True else f"{name} {value}"
        for name, value in values.items()
        if value is not None and value is not False
    )


def state_text(line: JobLine) -> str:
    """A change of state in one line, for whoever follows a job."""
    at = where(line)
    if line.state is JobState.RUNNING and at:
        return f"{line.name}: running, attempt {line.attempt_count}, {at}"
    if line.state is JobState.DONE and line.loads is not None and line.rows is not None:
        return f"{line.name}: done, {line.loads} loads, {line.rows:,} rows"
    if line.state in (JobState.LATER, JobState.BACKOFF):
        text = f"{line.name}: {line.state.value}, {moment(line.visible_at)}"
    else:
        text = f"{line.name}: {line.state.value}"
    return text + (f": {line.error}".replace("\n", "; ") if line.error else "")


def _cut(lines: Sequence[object]) -> str:
    return f", the last {_MOST} of {len(lines):,}" if len(lines) > _MOST else ""


def _facts(detail: JobDetail) -> list[tuple[str, str]]:
    line, record = detail.line, detail.record
    target = record.payload.get("target") or record.resource
    options = {name: value for name, value in record.payload.items() if name not in _SHOWN_APART}
    order = record.payload.get("order")
    found = [
        ("into", str(target) if target else ""),
        ("actions", ", ".join(map(_step, order.items())) if isinstance(order, dict) else ""),
        ("with", pairs(options)),
        ("submitted", f"{moment(record.submitted_at)} by {record.submitted_by}"),
        ("retry of", str(record.retry_of or "")),
        ("retried as", str(detail.retried_as or "")),
        ("priority", str(record.priority) if record.priority else ""),
        (
            "tries",
            f"{record.attempt_count} so far, {record.error_count} errors, {record.crash_count} "
            f"crashes; " + ended_by(record.kind, record.max_attempts),
        ),
        ("started", moment(record.started_at)),
        ("finished", moment(record.finished_at)),
        ("took", "" if line.duration_seconds is None else span(line.duration_seconds)),
        ("works on it", _worker(line)),
        ("lease", _lease(line)),
        ("lock", _lock(detail)),
        ("progress", pairs(record.progress or {}) if not record.status.is_terminal else ""),
        ("result", _result(record.result)),
    ]
    return [(name, value) for name, value in found if value]


def _step(step: tuple[str, Any]) -> str:
    action, options = step
    given = pairs(options) if isinstance(options, dict) else ""
    return f"{action} ({given})" if given else action


def _worker(line: JobLine) -> str:
    if line.worker_id is None:
        return ""
    beat = ""
    if line.beat_at is not None:
        beat = f", last beat {span((line.seen_at - line.beat_at).total_seconds())} ago"
    session = "" if line.worker_is_connected else ", its session is gone"
    command = f" ({line.command})" if line.command else ""
    return f"{where(line)}{command}{beat}{session}"


def _lease(line: JobLine) -> str:
    if line.lease_until is None:
        return ""
    left = (line.lease_until - line.seen_at).total_seconds()
    if line.state is JobState.CANCELLING:
        return "" if left > 0 else "whoever cancels it has not ended it: the next worker does"
    if left <= 0:
        return f"ran out {span(-left)} ago: the next worker or run takes it over"
    if not line.worker_is_connected:
        return f"{span(left)} left, but the next worker or run takes it over at once"
    return f"{span(left)} left"


def _lock(detail: JobDetail) -> str:
    record, holder = detail.record, detail.lock_holder
    if record.resource is None or record.status.is_terminal:
        return ""
    if holder is None:
        return f"{record.resource} is free; taken when it starts"
    if holder.job_id == record.job_id:
        return f"has {record.resource}"
    return f"waits for {record.resource}, held by {holder}"


def _result(result: dict[str, Any] | None) -> str:
    if not result:
        return ""
    shown = ("loads", "rows", "changed", "rejected", "watermark", "found_nothing")
    return pairs({name: result[name] for name in shown if result.get(name) is not None})


def follow(
    context: Context, job_ids: Sequence[UUID], *, quiet: bool = False, seen: JobDetail | None = None
) -> int:
    """Print what happens until all have ended; the exit code says whether all are done.

    What was shown of the job before is not printed again.
    """
    from rich.console import Console
    from rich.text import Text

    from tidegate.jobs.job import JobStatus
    from tidegate.jobs.queued_job import JobFollower

    status = Console().status("") if sys.stdout.isatty() and not quiet else None
    last: list[JobLine] = []

    def tick(found: list[JobLine]) -> None:
        last[:] = found
        if status is not None:
            status.update(Text(_title(found)))

    follower = JobFollower(context, job_ids, tick)
    if seen is not None:
        follower.skip(seen.line, len(seen.actions))
    try:
        with status or nullcontext():
            for step in follower.steps():
                if quiet:
                    continue
                if step.job is None:
                    sys.stderr.write("the control database does not answer; trying again\n")
                elif step.action is not None:
                    print_line(f"{step.job.name}: {action_text(step.action)}")
                else:
                    print_line(state_text(step.job))
    except KeyboardInterrupt:
        sys.stderr.write(
            "left; the job is not touched by that. "
            f"Look again with: tidegate job show {job_ids[0]} --follow\n"
        )
        raise typer.Exit(130) from None
    return 0 if all(line.status is JobStatus.DONE for line in last) else 1


def _title(found: list[JobLine]) -> str:
    left = [line for line in found if not line.status.is_terminal]
    if not left:
        return ""
    if len(left) > 1:
        return f"{len(left)} of {len(found)} jobs to go"
    line = left[0]
    took = "" if line.duration_seconds is None else f", {span(line.duration_seconds)}"
    progress = f", {pairs(line.progress)}" if line.progress else ""
    return f"{line.name}: {line.state.value}{took}{progress}"
