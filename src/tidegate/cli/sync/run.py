"""Tidegate run."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import (
    HERE,
    AllowRemoval,
    AllSyncs,
    AsJson,
    Concurrency,
    FollowQueued,
    Parameters,
    Profile,
    ProjectFolder,
    TakeTable,
    choose_syncs,
    open_project,
)
from tidegate.cli.output import moment, print_error, print_json, print_line, working
from tidegate.cli.sync.run_task import (
    choose_steps,
    forget_steps,
    queue_steps,
    read_parameters,
    run_steps,
)
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from uuid import UUID

    from tidegate.config.sync import Sync
    from tidegate.core.batch import LoadResult
    from tidegate.jobs.heartbeat import Heartbeat
    from tidegate.load.runner import ManyReport, RunReport, SyncEnd
    from tidegate.load.submit import QueueOptions
    from tidegate.project import Project

# A clock that is a little ahead of ours gives no wrong times.
_PAST_SECONDS = 60.0


def refuse_options(given: dict[str, bool], *, queue: bool) -> None:
    """Refuse options that mean nothing here: some are for the queue, some for running now."""
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong and queue:
        raise UsageError(
            f"{' and '.join(wrong)} cannot be given with --queue: a worker runs the job",
            "leave it out, or run it here, without --queue",
        )
    if wrong:
        raise UsageError(
            f"{' and '.join(wrong)} is for queued jobs",
            "add --queue, or leave it out",
        )


def read_moment(text: str | None) -> datetime | None:
    """A time as people write it; without a zone it is in UTC, as all that is printed."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--at {text!r} is not a time", 'write it as "2026-11-16 03:00" (UTC) or with +01:00'
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if (datetime.now(UTC) - found).total_seconds() > _PAST_SECONDS:
        raise UsageError(f"--at {text} is in the past ({moment(found)})", "leave it out")
    return found.astimezone(UTC)


def read_delay(text: str | None) -> float:
    """A duration in seconds."""
    from tidegate.core.units import parse_duration

    try:
        return 0.0 if text is None else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--delay {text!r} is not a duration", f"give {error}") from None


def queue_syncs(
    opened: Project,
    chosen: list[Sync],
    order: QueueOptions,
    *,
    full_refresh: bool,
    allow_removal: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Submit each, and say what to type next; one that is refused does not stop the others."""
    from tidegate.cli.job.screen import follow as watch

    documents: list[dict[str, Any]] = []
    ids: list[UUID] = []
    errors: list[TidegateError] = []
    for sync in chosen:
        try:
            found = _submit(
                opened,
                sync,
                order,
                full_refresh=full_refresh,
                allow_removal=allow_removal,
                several=len(chosen) > 1,
            )
        except TidegateError as error:
            errors.append(error)
            documents.append({"sync": sync.name, "error": error.message, "hint": error.hint})
            if not as_json:
                named = TidegateError(f"{sync.name}: {error.message}", error.hint)
                print_error(named, as_json=False)
            continue
        documents.append(found)
        ids.append(found["job"])
        if not as_json:
            print_line(f"{sync.name}: {found['said']}")
    codes = {error.exit_code for error in errors}
    code = 0 if not codes else codes.pop() if len(codes) == 1 else 1
    if ids and follow:
        code = watch(opened.context, ids, quiet=as_json) or code
    elif ids and not as_json:
        _say_next(opened, ids)
    if as_json:
        print_json(documents)
    opened.close()
    if code:
        raise typer.Exit(code)


def _submit(
    opened: Project,
    sync: Sync,
    order: QueueOptions,
    *,
    full_refresh: bool,
    allow_removal: bool,
    several: bool,
) -> dict[str, Any]:
    from dataclasses import replace

    from tidegate.cli.output import translated

    if several and order.idempotency_key is not None:
        order = replace(order, idempotency_key=f"{order.idempotency_key}:{sync.name}")
    with translated(f"queueing {sync.name}"):
        found = opened.submit(
            sync,
            full_refresh=full_refresh,
            allow_removal=allow_removal,
            priority=order.priority,
            at=order.visible_at,
            delay=order.delay_seconds,
            idempotency_key=order.idempotency_key,
        )
    if found.created:
        later = ""
        if order.visible_at is not None:
            later = f", to run at {moment(order.visible_at)}"
        elif order.delay_seconds:
            later = f", to run in {order.delay_seconds:g} s"
        said = f"queued as job {found.job_id}{later}"
    else:
        said = f"not queued again: it is job {found.job_id} already ({found.state()})"
    return {"sync": sync.name, "job": found.job_id, "created": found.created, "said": said}


def _say_next(opened: Project, ids: list[UUID]) -> None:
    from tidegate.cli.output import translated
    from tidegate.jobs.context import control_session
    from tidegate.jobs.job_view import read_queue

    which = f"tidegate job show {ids[0]} --follow" if len(ids) == 1 else "tidegate job list"
    print_line(f"watch with: {which}")
    with translated("looking for workers"), control_session(opened.context) as control:
        if control is not None:
            queue = read_queue(opened.context.plane, control, opened.name)
            for kind, _ in queue.unserved:
                print_line(f"no worker takes {kind} now: start one with: tidegate worker")


# A publish that holds its fence is ended after two; a second Ctrl-C leaves at once.
PATIENCE_SECONDS = 6.0


def run(
    names: Annotated[
        list[str] | None, typer.Argument(help="Syncs, groups, group.table or tasks.")
    ] = None,
    all_: AllSyncs = False,
    full_refresh: Annotated[
        bool,
        typer.Option(
            "--full-refresh",
            help="Load everything again in one commit; rows gone from the source leave the target.",
        ),
    ] = False,
    allow_removal: AllowRemoval = False,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Stop each sync after this many loads.")
    ] = None,
    parameters: Parameters = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Do the named tasks again, even if they are complete."),
    ] = False,
    concurrency: Concurrency = None,
    take_over: TakeTable = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Queue it for a worker instead of running it here.")
    ] = False,
    follow: FollowQueued = False,
    priority: Annotated[
        int | None,
        typer.Option(min=-1000, max=1000, help="With --queue: higher ones go first; 0 by default."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --queue: not before this time.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help='With --queue: wait, such as "10 min".')
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="With --queue: whoever repeats it gets the same job."),
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Load what is new, safely: killed anywhere, run it again.

    A task runs after what it requires; what is complete is skipped.

    Example: tidegate run orders customers

    Of a task: tidegate run revenue --param day=2026-11-01

    For a worker to do: tidegate run orders --queue --follow
    """
    here = {
        "--max-batches": max_batches is not None,
        "--concurrency": concurrency is not None,
        "--take-over": take_over,
    }
    queued = {
        "--follow": follow,
        "--priority": priority is not None,
        "--at": at is not None,
        "--delay": delay is not None,
        "--idempotency-key": idempotency_key is not None,
    }
    refuse_options(here if queue else queued, queue=queue)
    opened = open_project(project, profile)
    if any(name in opened.tasks for name in names or ()):
        _refuse_for_tasks(
            {
                "--all": all_,
                "--full-refresh": full_refresh,
                "--max-batches": max_batches is not None,
                "--take-over": take_over,
            }
        )
        values = read_parameters(parameters or [])
        steps = choose_steps(opened, names or [], values, allow_removal=allow_removal)
        if again:
            forget_steps(opened, steps)
        if queue:
            from tidegate.load.submit import QueueOptions

            if idempotency_key is not None:
                raise UsageError(
                    "--idempotency-key is for syncs", "a task with its parameters is queued once"
                )
            order = QueueOptions(priority or 0, read_moment(at), read_delay(delay))
            queue_steps(opened, steps, order, follow=follow, as_json=as_json)
            return
        run_steps(
            opened,
            steps,
            concurrency=concurrency,
            as_json=as_json,
            leave=leave,
            patience_seconds=PATIENCE_SECONDS,
        )
        return
    for option, given in (("--param", bool(parameters)), ("--again", again)):
        if given:
            _refuse_parameters(opened, option, names or [])
    if queue:
        from tidegate.load.submit import QueueOptions

        order = QueueOptions(priority or 0, read_moment(at), read_delay(delay), idempotency_key)
        wanted = choose_syncs(names or [], all_, opened.names)
        queue_syncs(
            opened,
            opened.expand(wanted, fresh=full_refresh),
            order,
            full_refresh=full_refresh,
            allow_removal=allow_removal,
            follow=follow,
            as_json=as_json,
        )
        return
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.jobs.shutdown import Shutdown

    chosen = opened.expand(choose_syncs(names or [], all_, opened.names), fresh=full_refresh)
    started = time.monotonic()
    screen = _Screen(len(chosen), quiet=as_json)
    with (
        open_heartbeat(opened.context, "tidegate run") as heartbeat,
        Shutdown(partial(leave, opened, heartbeat), patience_seconds=PATIENCE_SECONDS),
        nullcontext() if as_json else working(screen.title(chosen)),
    ):
        report = opened.run_many(
            chosen,
            full_refresh=full_refresh,
            allow_removal=allow_removal,
            max_batches=max_batches,
            take_over=take_over,
            concurrency=concurrency,
            step=screen.step,
            ended=screen.ended,
            heartbeat=heartbeat,
        )
    if as_json:
        print_json([_document(end) for end in report.ends])
    elif len(chosen) > 1:
        print_line(_total(report, time.monotonic() - started))
    opened.close()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _refuse_for_tasks(given: dict[str, bool]) -> None:
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(
            f"{' and '.join(wrong)} is for syncs, and a task was named",
            "leave it out, or run the syncs by themselves",
        )


def _refuse_parameters(opened: Project, option: str, names: list[str]) -> None:
    tasks = opened.tasks
    what = f"{', '.join(names)} is no task" if names else "no task was named"
    known = f"the tasks are {', '.join(tasks)}" if tasks else "the project declares no task"
    raise UsageError(f"{option} is for tasks, and {what}", known)


def leave(opened: Project, heartbeat: Heartbeat, reason: str) -> int:
    """Ctrl-C cancels what is under way; SIGTERM leaves it to the next run or to a worker."""
    from tidegate.jobs.shutdown import release_jobs

    interrupted = "SIGINT" in reason
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # the cursor, which the spinner hides
    left = release_jobs(opened.context, heartbeat, reason, cancel=interrupted)
    word = "interrupted" if interrupted else "told to stop"
    what = f", {left} job{'s' if left > 1 else ''} {'cancelled' if interrupted else 'given back'}"
    sys.stderr.write(f"{word}{what if left else ''}; run again at any time\n")
    return 130 if interrupted else 1


@dataclass(frozen=True, slots=True)
class _Screen:
    """What a run says while it goes on."""

    count: int
    quiet: bool

    def title(self, chosen: list[Sync]) -> str:
        return f"{chosen[0].name}: loading" if self.count == 1 else f"loading {self.count} syncs"

    def step(self, sync: Sync, load: LoadResult) -> None:
        if not self.quiet:
            _print_load(sync, load)

    def ended(self, end: SyncEnd) -> None:
        if self.quiet:
            return
        if end.error is not None:
            error = TidegateError(f"{end.sync.name}: {end.error.message}", end.error.hint)
            print_error(error, as_json=False)
        elif end.report is not None:
            for remark in dict.fromkeys(end.report.outcome.remarks):
                print_line(f"{end.sync.name}: {remark}")
            print_line(_summary(end.sync, end.report))


def _total(report: ManyReport, seconds: float) -> str:
    """The last line of a run of several syncs."""
    ended = [end.report for end in report.ends if end.report is not None]
    nothing = sum(one.found_nothing for one in ended)
    parts = [
        f"{len(ended) - nothing} loaded",
        f"{nothing} without anything new",
        f"{len(report.failed)} failed",
    ]
    text = f"{len(report.ends)} syncs: {', '.join(parts)}; {report.rows:,} rows in {seconds:.1f} s"
    if report.failed:
        text += f"; failed: {', '.join(end.sync.name for end in report.failed)}"
    return text


def _print_load(sync: Sync, load: LoadResult) -> None:
    already = ", was already in" if load.already else ""
    rejected = f", {load.rejected:,} rejected" if load.rejected else ""
    print_line(
        f"{sync.name}: {load.rows:,} rows, {load.changed:,} changed{rejected}, {load.batch}, "
        f"{load.seconds:.1f} s{already}"
    )
    for note in load.notes:
        print_line(f"{sync.name}: {note}")


def _summary(sync: Sync, report: RunReport) -> str:
    from tidegate.load.modes import MODES
    from tidegate.load.targets.postgres.rejected_rows import rejected_table

    name = sync.name
    if report.cancelled:
        return f"{name}: job {report.job_id} was cancelled; nothing more was published"
    if report.status == "stale":
        return f"{name}: another attempt took over; this one published nothing more"
    watermark = report.outcome.watermark.value if report.outcome.watermark else None
    whole = MODES[sync.mode].loads_whole
    at = "all of it" if whole else f"watermark {watermark or 'at the start'}"
    if report.found_nothing:
        text = f"{name}: ran, found nothing new; {at}"
    else:
        text = f"{name}: done, {report.outcome.rows:,} rows, {at}"
    if report.outcome.rejected:
        text += (
            f"; {report.outcome.rejected:,} rejected, see {rejected_table(sync.target.relation)}"
        )
    horizon = report.outcome.horizon
    if horizon is not None and horizon.held_by is not None:
        text += f"; held back by {horizon.held_by}"
    return text


def _document(end: SyncEnd) -> dict[str, Any]:
    if end.report is None:
        assert end.error is not None
        return {
            "sync": end.sync.name,
            "status": "failed",
            "error": end.error.message,
            "hint": end.error.hint,
        }
    report = end.report
    outcome = report.outcome
    return {
        "sync": end.sync.name,
        "job": str(report.job_id),
        "status": report.status,
        "cancelled": report.cancelled,
        "rows": outcome.rows,
        "changed": outcome.changed,
        "rejected": outcome.rejected,
        "notes": outcome.notes,
        "found_nothing": report.found_nothing,
        "watermark": outcome.watermark.value if outcome.watermark else None,
        "held_by": str(outcome.horizon.held_by)
        if outcome.horizon and outcome.horizon.held_by
        else None,
        "loads": [
            {
                "update_id": load.update_id,
                "batch": str(load.batch),
                "rows": load.rows,
                "changed": load.changed,
                "rejected": load.rejected,
                "seconds": round(load.seconds, 3),
            }
            for load in outcome.loads
        ],
    }
