"""`tidegate table`: the tables of the project's lakes, how they are, and what is done to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import (
    HERE,
    AsJson,
    DryRun,
    FollowQueued,
    Profile,
    ProjectFolder,
    open_project,
)
from tidegate.cli.output import print_json
from tidegate.cli.translation import translated
from tidegate.errors import UnknownTable, UsageError
from tidegate.model.maintenance import Action

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.insight.tables import TableView
    from tidegate.pipeline.context import Context
    from tidegate.postgres.connect import Connection

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
    from tidegate.cli.table_screen import print_listing
    from tidegate.insight.table_documents import listing_document
    from tidegate.insight.table_health import list_health
    from tidegate.insight.tables import list_all
    from tidegate.runtime.refreshing import Refresher

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
    from tidegate.cli.table_screen import print_status
    from tidegate.insight.table_documents import table_document

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
    from tidegate.cli.table_screen import print_health
    from tidegate.insight.table_documents import health_document
    from tidegate.insight.table_health import list_health, table_health
    from tidegate.insight.tables import list_all
    from tidegate.runtime.refreshing import Refresher

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
    from tidegate.cli.table_screen import print_recommendation
    from tidegate.insight.table_documents import recommendation_document
    from tidegate.insight.table_health import table_recommendation

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
    from tidegate.cli.maintaining import Maintain

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
            code = work.foretell(order)
        elif queue:
            code = work.submit(order, follow=follow)
        else:
            code = work.do(order)
    if code:
        raise typer.Exit(code)


@contextmanager
def _lakes(folder: Path, profile: str | None, doing: str) -> Iterator[tuple[Context, Connection]]:
    """The opened project and a session of its control database."""
    from tidegate.insight.tables import lakes

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
    from tidegate.insight.tables import find_by_name, table_status
    from tidegate.runtime.refreshing import Refresher

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

    from tidegate.insight.tables import list_tables

    for one in list_tables(context, control, limit=1).catalogs:
        if one.error is not None:
            sys.stderr.write(f"{one.catalog}: {one.error}\n")
