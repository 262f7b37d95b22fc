"""`tidegate marker`: which loads are in, and forgetting one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line, print_table, translated
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.project import Project

app = typer.Typer(
    no_args_is_help=True,
    help="See which loads are in, forget or record one.\n\nExample: tidegate marker list warehouse",
)

Target = Annotated[str, typer.Argument(help="The table, as connection:schema.table.")]


@app.command("list")
def list_(
    connection: Annotated[
        str | None,
        typer.Argument(help="A connection; by default every one that a sync loads into."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Only this table, as schema.table.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List the newest markers: which load is in which table, since when.

    Example: tidegate marker list warehouse --table raw.orders --limit 20
    """
    from tidegate.admin.marker import list_markers
    from tidegate.core.relation import Relation

    relation = None if table is None else Relation.parse(table)
    opened = open_project(project, profile)
    names = [connection] if connection else _destinations(opened)
    with translated("listing markers"):
        found = [
            (name, row)
            for name in names
            for row in list_markers(opened.context, name, relation, limit)
        ]
    found.sort(key=lambda one: one[1].inserted or "", reverse=True)
    found = found[:limit]
    if as_json:
        print_json(
            [
                {
                    "connection": name,
                    "update_id": row.update_id,
                    "table": row.target_table,
                    "inserted": row.inserted,
                }
                for name, row in found
            ]
        )
    elif not found:
        print_line(f"no markers in {', '.join(names)}" + (f" for {relation}" if relation else ""))
    else:
        print_table(
            ("connection", "table", "inserted", "update_id"),
            ((name, row.target_table, row.inserted, row.update_id) for name, row in found),
        )


@app.command()
def forget(
    target: Target,
    update_id: Annotated[str, typer.Argument(help="The load, as `marker list` prints it.")],
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Forget one load, so that it counts as not done; its rows stay where they are.

    Example: tidegate marker forget warehouse:marts.revenue revenue-2026-11-01
    """
    from tidegate.admin.marker import forget_marker
    from tidegate.core.identity import sync_of
    from tidegate.core.relation import Endpoint

    endpoint = Endpoint.parse(target)
    opened = open_project(project, profile)
    with translated(f"forgetting {update_id}"):
        forgotten = forget_marker(opened.context, endpoint, update_id)
    warning = None
    if forgotten.pipelines:
        names = [sync_of(opened.name, pipeline) for pipeline in forgotten.pipelines]
        warning = (
            f"{update_id} was a load of {', '.join(names)}: forgetting it does not load its rows "
            f"again, a rewind does: tidegate watermark rewind {names[0]} VALUE --reason …"
        )
    elif forgotten.still_in:
        warning = (
            f"{endpoint} itself says that {update_id} is in: publishing it again only records it; "
            "for rows that are to be loaded again choose another update_id"
        )
    if as_json:
        print_json(
            {
                "update_id": update_id,
                "target": str(endpoint),
                "tables": forgotten.tables,
                "pipelines": forgotten.pipelines,
                "warning": warning,
            }
        )
        return
    print_line(f"forgot {update_id} for {endpoint}")
    if warning:
        sys.stderr.write(f"warning: {warning}\n")


@app.command()
def touch(
    target: Target,
    update_id: Annotated[str, typer.Argument(help="The load.")],
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Record a load that is in already, so that it counts as done.

    Example: tidegate marker touch warehouse:marts.revenue revenue-2026-11-01
    """
    from tidegate.admin.marker import touch_marker
    from tidegate.core.relation import Endpoint

    endpoint = Endpoint.parse(target)
    opened = open_project(project, profile)
    with translated(f"recording {update_id}"):
        new = touch_marker(opened.context, endpoint, update_id)
    if as_json:
        print_json({"update_id": update_id, "target": str(endpoint), "recorded": new})
    else:
        print_line(f"{update_id} for {endpoint} {'is recorded' if new else 'was recorded before'}")


def _destinations(opened: Project) -> list[str]:
    names = opened.destinations or list(opened.settings.connections)
    if not names:
        raise UsageError(
            "the project has no connection, so there is nowhere to look for markers",
            "declare one in tidegate.toml, under [connections]",
        )
    if len(names) > 1 and not opened.destinations:
        raise UsageError(
            f"no sync says which of {', '.join(names)} has the markers",
            f"name the connection: tidegate marker list {names[-1]}",
        )
    return names
