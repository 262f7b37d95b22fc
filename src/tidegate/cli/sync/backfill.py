"""`tidegate backfill`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import (
    HERE,
    AllowRemoval,
    AsJson,
    Concurrency,
    Parameters,
    Profile,
    ProjectFolder,
    open_project,
)
from tidegate.cli.output import print_json, print_line, working
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.config.sync import Sync
    from tidegate.config.task import Task, TaskRun
    from tidegate.core.batch import LoadResult
    from tidegate.project import Project

_MOST_DAYS = 36_600


def backfill(
    name: Annotated[str, typer.Argument(help="The sync, group.table, or task.")],
    first: Annotated[
        str,
        typer.Option("--from", metavar="START", help="Where it begins: of a task, the first day."),
    ],
    last: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="END",
            help="Where it ends: of a sync, the first value that is not loaded; of a task, the "
            "last day, which counts.",
        ),
    ],
    chunk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help='Of a sync: how much each load takes, such as "1 day" or 10000; a day or '
            "batch_rows by default.",
        ),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The parameter that gets the day, if it has several."),
    ] = None,
    parameters: Parameters = None,
    concurrency: Concurrency = None,
    allow_removal: AllowRemoval = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Load a range of a sync's source again, or run a task for every day of a range.

    Of a sync the rows with --from <= cursor < --to are loaded in chunks, each a load with a marker
    of its own; the watermark stays where it is. Of a task the days that are complete are skipped.
    Interrupted or killed, the same command goes on with what is missing.

    Example: tidegate backfill orders --from 2026-01-01 --to 2026-02-01 --chunk "1 day"

    Of a task: tidegate backfill revenue --from 2026-11-01 --to 2026-11-30
    """
    from tidegate.cli.sync.run import PATIENCE_SECONDS, leave
    from tidegate.cli.sync.run_task import read_parameters, run_steps
    from tidegate.tasks.graph import find_task

    opened = open_project(project, profile)
    if name not in opened.tasks and name.partition(".")[0] in opened.names:
        for_tasks = {
            "--over": over,
            "--param": parameters,
            "--concurrency": concurrency,
            "--allow-removal": allow_removal or None,
        }
        wrong = [option for option, value in for_tasks.items() if value is not None]
        if wrong:
            raise UsageError(f"{wrong[0]} is for tasks, and {name} is a sync", "leave it out")
        _backfill_sync(opened, opened.sync(name), first, last, chunk, as_json=as_json)
        return
    if chunk is not None:
        raise UsageError(
            f"--chunk is for syncs, and {name} is not one", "a task runs once for each day"
        )
    given = read_parameters(parameters or [])
    days = _days(_day("--from", first), _day("--to", last))
    runs = _runs(find_task(opened.tasks, name), over, days, given)
    run_steps(
        opened,
        [replace(run, allow_removal=allow_removal) for run in runs],
        concurrency=concurrency,
        as_json=as_json,
        leave=leave,
        patience_seconds=PATIENCE_SECONDS,
        command="tidegate backfill",
    )


def _backfill_sync(
    opened: Project, sync: Sync, first: str, last: str, chunk: str | None, *, as_json: bool
) -> None:
    from tidegate.cli.sync.run import PATIENCE_SECONDS, leave
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.jobs.shutdown import Shutdown
    from tidegate.verify.backfill import backfill_sync

    def step(load: LoadResult, number: int, count: int) -> None:
        if not as_json:
            rejected = f", {load.rejected:,} rejected" if load.rejected else ""
            print_line(
                f"{sync.name}: {load.batch}, {load.rows:,} rows, {load.changed:,} "
                f"changed{rejected}, {load.seconds:.1f} s ({number:,} of {count:,})"
            )

    with (
        open_heartbeat(opened.context, "tidegate backfill") as heartbeat,
        Shutdown(partial(leave, opened, heartbeat), patience_seconds=PATIENCE_SECONDS),
        nullcontext() if as_json else working(f"{sync.name}: loading"),
    ):
        report = backfill_sync(
            opened.context, sync, heartbeat, low=first, high=last, chunk=chunk, step=step
        )
    if as_json:
        print_json(report)
    else:
        before = f", {report.already:,} were in already" if report.already else ""
        empty = f", {report.empty:,} without rows" if report.empty else ""
        print_line(
            f"{sync.name}: done, {report.rows:,} rows, {report.changed:,} changed; of "
            f"{report.chunks:,} chunks {report.loaded:,} loaded{before}{empty}"
        )
    opened.close()


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a date", "write it as 2026-11-01") from None


def _days(first: date, last: date) -> list[date]:
    if last < first:
        raise UsageError(f"--to {last} is before --from {first}", "give them the other way round")
    count = (last - first).days + 1
    if count > _MOST_DAYS:
        raise UsageError(f"{count:,} days are too many at once", "give a shorter range")
    return [first + timedelta(days=number) for number in range(count)]


def _runs(task: Task, over: str | None, days: list[date], given: dict[str, str]) -> list[TaskRun]:
    dates = [one.name for one in task.signature.parameters if one.type.name == "date"]
    if over is not None and over not in dates:
        raise UsageError(
            f"task {task.name} has no date called {over!r}",
            f"it has {', '.join(dates)}" if dates else "a backfill needs a parameter of type date",
        )
    # What was given with --param is no longer open.
    free = [one for one in dates if one not in given] if over is None else [over]
    if len(free) != 1:
        raise UsageError(
            f"task {task.name} has {'no' if not free else 'more than one'} parameter of type date"
            f"{' that is open' if dates and not free else ''}",
            f"say which with --over: {', '.join(dates)}"
            if dates
            else "a backfill goes over a parameter of type date",
        )
    if free[0] in given:
        raise UsageError(f"--param {free[0]} and --over {free[0]} were both given", "give one")
    return [
        task.run(task.signature.parse(task.name, {**given, free[0]: day.isoformat()}))
        for day in days
    ]
