"""`tidegate history`: what ran, how it went, and whether it takes longer than it used to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TwentyAtMost, open_project
from tidegate.cli.output import print_json, print_line
from tidegate.cli.translation import translated
from tidegate.errors import UsageError
from tidegate.model.task_history import TaskStatus

if TYPE_CHECKING:
    from datetime import datetime


class ListByDefault(TyperGroup):
    """`tidegate history orders` means `tidegate history list orders`."""

    default = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="See every run that is remembered: how it went, how long it took, what it was given.\n\n"
    "Without a command it lists them.\n\n"
    "Example: tidegate history orders --since 24h --status failed",
)


@app.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A sync, a task or a table.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="Only runs that were given this."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only runs since then: 24h, 7 days, 2026-11-01, 2026-11-01T08:30."),
    ] = None,
    status: Annotated[
        list[TaskStatus] | None, typer.Option("--status", help="Only runs that stand so.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only these, such as sync or task.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="All about one run, by its id or its beginning, or its job."
        ),
    ] = None,
    limit: TwentyAtMost = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first; with --id show all about one.

    Example: tidegate history list orders --since 24h --status failed
    """
    from tidegate.cli.history_screen import print_run, print_runs
    from tidegate.control.task_questions import Wanted
    from tidegate.insight.history_documents import run_document, whole_document

    if run is not None and (name or param or since or status or kind or limit):
        raise UsageError("--id was given beside other conditions", "give one of them")
    wanted = Wanted(
        names=(name,) if name else (),
        kinds=kind or (),
        statuses=status or (),
        parameters=_parameters(param or []),
        since=None if since is None else _moment(since),
    )
    history = open_project(project, profile).history
    with translated("reading the history"):
        found = history.newest(wanted, limit or 20) if run is None else history.find_by_text(run)
        if run is not None and len(found) == 1:
            whole = history.find_task_by_id(found[0].id) or found[0]
            events = history.find_all_events(whole.id)
            if as_json:
                print_json(whole_document(whole, events))
            else:
                print_run(whole, events)
            return
    if as_json:
        print_json({"runs": [run_document(one) for one in found]})
    elif found:
        print_runs(found)
    else:
        print_line("no such runs" if name or param or since or status or kind else "no runs yet")


@app.command()
def trends(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="All of them when none is named.")
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say how long everything takes, how often it fails, and what is slower than usual.

    Slower than usual is a run above the 95th percentile of the 30 before it and more than 20 %
    above their median.

    Example: tidegate history trends
    """
    from tidegate.cli.history_screen import print_trends
    from tidegate.insight.history_documents import trend_document

    history = open_project(project, profile).history
    with translated("reading the history"):
        found = history.trends(tuple(names or ()))
    if as_json:
        print_json({"trends": [trend_document(one) for one in found]})
    elif found:
        print_trends(found)
    else:
        print_line("no such runs in the last 8 weeks" if names else "no runs in the last 8 weeks")


def _parameters(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"--param {text!r} has no value", "write --param NAME=VALUE")
        found[name.strip()] = value
    return found


def _moment(text: str) -> datetime:
    """A moment, or a length of time before now."""
    from datetime import UTC, datetime, timedelta

    from tidegate.settings.durations import parse_duration

    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--since {text!r} is no time", 'write "24h", "7 days", 2026-11-01 or 2026-11-01T08:30'
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
