"""`tidegate backfill`."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import (
    HERE,
    AsJson,
    Concurrency,
    Parameters,
    Profile,
    ProjectFolder,
    open_project,
)
from tidegate.errors import UsageError

if TYPE_CHECKING:
    from tidegate.model.task import Task, TaskRun

_MOST_DAYS = 36_600


def backfill(
    name: Annotated[str, typer.Argument(help="The task.")],
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="The first day.")],
    last: Annotated[str, typer.Option("--to", metavar="DAY", help="The last day, which counts.")],
    over: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The parameter that gets the day, if it has several."),
    ] = None,
    parameters: Parameters = None,
    concurrency: Concurrency = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Run a task for every day of a range, and skip the days that are complete.

    Interrupted or killed, the same command goes on with what is missing.

    Example: tidegate backfill revenue --from 2026-11-01 --to 2026-11-30
    """
    from tidegate.cli.run import PATIENCE_SECONDS, leave
    from tidegate.cli.task_run import read_parameters, run_steps
    from tidegate.pipeline.task_graph import find_task

    given = read_parameters(parameters or [])
    days = _days(_day("--from", first), _day("--to", last))
    opened = open_project(project, profile)
    runs = _runs(find_task(opened.tasks, name), over, days, given)
    run_steps(
        opened,
        runs,
        concurrency=concurrency,
        as_json=as_json,
        leave=leave,
        patience_seconds=PATIENCE_SECONDS,
        command="tidegate backfill",
    )


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
