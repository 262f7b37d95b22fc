"""Tidegate table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.job.screen import effect_text
from tidegate.cli.options import (
    HERE,
    AsJson,
    DryRun,
    FollowQueued,
    Profile,
    ProjectFolder,
    open_project,
)
from tidegate.cli.output import moment, print_json, print_line, translated
from tidegate.core.errors import UnknownTable, UsageError
from tidegate.core.table_actions import Action
from tidegate.core.units import counted, in_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tidegate.load.context import Context
    from tidegate.maintenance.facts import TableFacts
    from tidegate.maintenance.health import Health
    from tidegate.maintenance.table_report import TableHealth, TableRecommendation
    from tidegate.maintenance.tables import TableListing, TableView
    from tidegate.postgres.connection import Connection

app = typer.Typer(
    no_args_is_help=True,
    help="See the tables of the project's lakes, and maintain them."
    "\n\nExample: tidegate table list",
)
TableName = Annotated[
    str, typer.Argument(metavar="NAME", help="A table: lake:raw.orders, raw.orders or orders.")
]
Cached = Annotated[
    bool, typer.Option("--cached", help="As last looked at, without asking the catalog.")
]


@app.command("list")
def list_(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look at every lake first, however new the cache.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List the tables of all lakes, and say which are not well.

    Example: tidegate table list --refresh
    """
    from tidegate.maintenance.table_cache import Refresher
    from tidegate.maintenance.table_report import list_health, listing_document
    from tidegate.maintenance.tables import list_all

    with _lakes(project, profile, "listing the tables") as (context, control):
        young = 0.0 if refresh else context.settings.maintenance.refresh_seconds
        Refresher(context).run_once(control, younger_seconds=young)
        found = list_all(context, control)
        health = list_health(context, control, found.tables)
        if as_json:
            words = {str(one.table.target): one.word for one in health}
            print_json(listing_document(found, words))
        else:
            print_listing(found, health)


@app.command()
def status(
    name: TableName,
    cached: Cached = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a table is made of: files, sizes, snapshots, deletes, manifests.

    Example: tidegate table status lake:raw.orders
    """
    from tidegate.maintenance.table_report import table_document

    with _lakes(project, profile, f"reading {name}") as (context, control):
        table = _find(context, control, name, live=not cached)
        print_json(table_document(table)) if as_json else print_status(table)


@app.command()
def health(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A table; all of them when none is named."),
    ] = None,
    cached: Cached = False,
    fail: Annotated[
        bool, typer.Option("--fail", help="Exit with 1 when something is not well.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say what is not well with a table, with figures, and what would help.

    Example: tidegate table health lake:raw.orders --fail
    """
    from tidegate.maintenance.table_cache import Refresher
    from tidegate.maintenance.table_report import health_document, list_health, table_health
    from tidegate.maintenance.tables import list_all

    with _lakes(project, profile, "looking at the tables") as (context, control):
        if name is None:
            if not cached:
                Refresher(context).run_once(control)
            found = list_health(context, control, list_all(context, control).tables)
        else:
            table = _find(context, control, name, live=not cached)
            found = (table_health(context, control, table),)
        if as_json:
            documents = [health_document(one) for one in found]
            print_json(documents if name is None else documents[0])
        else:
            print_health(found)
    if fail and any(one.word != "good" for one in found):
        raise typer.Exit(1)


@app.command()
def recommend(
    name: TableName,
    cached: Cached = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say which actions should run now, why, what they would change, and why the rest not.

    Example: tidegate table recommend raw.orders
    """
    from tidegate.maintenance.table_report import recommendation_document, table_recommendation

    with _lakes(project, profile, f"looking at {name}") as (context, control):
        table = _find(context, control, name, live=not cached)
        found = table_recommendation(context, control, table, predict=not cached)
        print_json(recommendation_document(found)) if as_json else print_recommendation(found)


@app.command()
def maintain(
    name: TableName,
    actions: Annotated[
        list[Action] | None,
        typer.Option("--action", help="Do this; may be repeated. Without: what is recommended."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="ACTION.KEY=VALUE",
            help="Such as rewrite_data_files.target_file_size=256MB; may be repeated.",
        ),
    ] = None,
    dry_run: DryRun = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Leave it to a worker instead of doing it here.")
    ] = False,
    follow: FollowQueued = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Maintain a table here and now: what is recommended, or the actions that are named.

    Example: tidegate table maintain raw.orders --action rewrite_data_files --dry-run
    """
    from tidegate.cli.table_maintain import Maintain

    if follow and not queue:
        raise UsageError("--follow is for queued jobs", "add --queue, or leave it out")
    if queue and dry_run:
        raise UsageError("--queue and --dry-run were both given", "give one of them")
    with _lakes(project, profile, f"maintaining {name}") as (context, control):
        table = _find(context, control, name, live=True)
        work = Maintain(context, control, table, as_json)
        order = work.order(actions or [], options or [])
        if order is None:
            code = 0
        elif dry_run:
            code = work.predict(order)
        elif queue:
            code = work.submit(order, follow=follow)
        else:
            code = work.do(order)
    if code:
        raise typer.Exit(code)


@contextmanager
def _lakes(folder: Path, profile: str | None, doing: str) -> Iterator[tuple[Context, Connection]]:
    """The opened project and a session of its control database."""
    from tidegate.maintenance.tables import lakes

    with open_project(folder, profile) as opened, translated(doing):
        context = opened.context
        if not lakes(context):
            raise UsageError(
                f"project {opened.name} has no lake",
                'add a connection such as lake = { type = "iceberg" } to [connections]',
            )
        context.control_id()  # so that there is a control plane to connect to
        with context.plane.connect() as control:
            yield context, control


def _find(context: Context, control: Connection, name: str, *, live: bool) -> TableView:
    """The table; the lakes are looked at first when it is not in the cache."""
    from tidegate.maintenance.table_cache import Refresher
    from tidegate.maintenance.tables import find_by_name, table_status

    try:
        found = find_by_name(context, control, name)
    except UnknownTable:
        done = Refresher(context).run_once(control)
        if done.failed:
            _say_failures(context, control)
        found = find_by_name(context, control, name)
    return table_status(context, control, found, live=live)


def _say_failures(context: Context, control: Connection) -> None:
    """On standard error, that a lake could not be looked at, where a table may well be."""
    import sys

    from tidegate.maintenance.tables import list_tables

    for one in list_tables(context, control, limit=1).catalogs:
        if one.error is not None:
            sys.stderr.write(f"{one.catalog}: {one.error}\n")


COLOURS = {"good": "green", "warning": "yellow", "critical": "red", "unknown": "dim"}


def coloured(word: str, text: str | None = None) -> Any:
    """A state in its colour, on a terminal."""
    from rich.text import Text

    return Text(word if text is None else text, style=COLOURS.get(word, ""))


def say(word: str, text: str) -> None:
    """One line that begins with a state."""
    if not sys.stdout.isatty():
        print_line(f"{word}: {text}")
        return
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(coloured(word, f"{word}:"), text, markup=False)


def print_listing(listing: TableListing, health: Sequence[TableHealth]) -> None:
    """A table of tables, and what is stale below it."""
    from tidegate.cli.output import print_table

    rows = []
    for one in health:
        facts = one.table.facts
        rows.append(
            (
                one.table.target,
                coloured(one.word),
                "" if facts is None else f"{facts.records:,}",
                "" if facts is None else f"{facts.data.files:,}",
                "" if facts is None else in_bytes(facts.data.bytes),
                "" if facts is None else f"{facts.small.files:,}",
                "" if facts is None else f"{facts.snapshots:,}",
                _issues(one.health),
            )
        )
    if rows:
        print_table(
            ("table", "health", "rows", "files", "size", "small", "snapshots", "not well"), rows
        )
    else:
        print_line("no tables")
    for one in health:
        if one.table.is_stale and one.table.stale_reason not in _said(listing):
            print_line(f"{one.table.target}: {_staleness(one.table)}")
    for catalog in listing.catalogs:
        if catalog.stale_reason is not None:
            since = f" since {moment(catalog.stale_since)}" if catalog.stale_since else ""
            print_line(f"{catalog.catalog}: stale{since}: {catalog.stale_reason}")


def print_status(table: TableView) -> None:
    """What a table is made of, a line for each fact."""
    _print_head(table)
    if table.facts is not None:
        for name, value in _facts(table.facts):
            print_line(f"  {name}: {value}")


def print_health(found: Sequence[TableHealth]) -> None:
    """What is not well, the tables one after the other."""
    if not found:
        print_line("no tables")
    for one in found:
        _print_stale(one.table)
        if one.health is None:
            say("unknown", f"{one.table.target} was not read yet")
        elif one.health.is_good:
            say("good", str(one.table.target))
        for issue in () if one.health is None else one.health.issues:
            helps = "" if issue.action is None else f"; {issue.action.value} helps"
            say(issue.severity, f"{one.table.target}: {issue.message}{helps}")


def print_recommendation(found: TableRecommendation) -> None:
    """What should run and what not, each with its reason, and how to run it."""
    _print_stale(found.table)
    for one in found.recommendation.advices:
        if not one.run:
            reason = "" if one.reason == one.skip else f" ({one.reason})"
            print_line(f"{one.action.value}: not now: {one.skip}{reason}")
            continue
        effect = found.predicted.get(one.action)
        would = "" if effect is None else f"; would make {effect_text(effect)}"
        print_line(f"{one.action.value}: run: {one.reason}{would}")
    if found.recommendation.opted_out is not None:
        print_line(found.recommendation.opted_out)
    if found.order is not None:
        print_line(f"do it with: tidegate table maintain {found.table.target}")


def _facts(facts: TableFacts) -> list[tuple[str, str]]:
    def amount(one: Any) -> str:
        return f"{counted(one.files, 'file')}, {in_bytes(one.bytes)}"

    small = f"{amount(facts.small)}; together they would be about {facts.small_after:,}"
    return [
        ("location", facts.location),
        ("format", f"version {facts.format_version}"),
        ("rows", f"{facts.records:,} in data files, deleted ones included"),
        ("data", f"{amount(facts.data)} in {counted(facts.partitions, 'partition')}"),
        ("small", small if facts.small.files else "none"),
        ("target size", in_bytes(facts.target_file_bytes)),
        (
            "position deletes",
            f"{amount(facts.position_deletes)}, {facts.position_deleted_rows:,} rows",
        ),
        (
            "equality deletes",
            f"{amount(facts.equality_deletes)}, {facts.equality_deleted_rows:,} rows",
        ),
        ("dangling deletes", f"{counted(facts.dangling_delete_files, 'file')}"),
        ("manifests", f"{amount(facts.manifests)}, {facts.small_manifests:,} small"),
        ("snapshots", f"{facts.snapshots:,}, the oldest of {moment(facts.oldest_snapshot_at)}"),
        ("last written", moment(facts.snapshot_at) or "never"),
        ("branches and tags", f"{facts.branches:,} and {facts.tags:,}"),
    ]


def _print_head(table: TableView) -> None:
    how = "now" if table.live else f"as of {moment(table.as_of)}"
    print_line(f"{table.target}, {how}")
    _print_stale(table)


def _print_stale(table: TableView) -> None:
    if table.is_stale:
        print_line(f"{table.target}: {_staleness(table)}")


def _staleness(table: TableView) -> str:
    since = f" since {moment(table.stale_since)}" if table.stale_since else ""
    return f"stale{since}: {table.stale_reason}"


def _said(listing: TableListing) -> set[str | None]:
    return {one.stale_reason for one in listing.catalogs}


def _issues(health: Health | None) -> str:
    return "" if health is None else ", ".join(one.name for one in health.issues)
