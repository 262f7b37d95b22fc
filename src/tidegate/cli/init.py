"""`tidegate init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson
from tidegate.cli.output import print_json, print_line, print_table, translated

if TYPE_CHECKING:
    from tidegate.admin.scaffold import Scaffold


def init(
    folder: Annotated[Path, typer.Argument(help="Where to make it; here by default.")] = HERE,
    name: Annotated[
        str | None, typer.Option(help="The project's name; by default the folder's.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Postgres database whose tables to sync; - reads the URL from standard input.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A project for a purpose: events turns them into facts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a project; with --source, one that syncs a database as it stands.

    Example: tidegate init shop --source "$SHOP_URL"
    """
    from tidegate.admin.scaffold import propose_project, write_project

    if source == "-":
        source = sys.stdin.readline().strip()
    with translated("looking at the source"):
        scaffold = propose_project(folder, name, source, template)
    files = write_project(scaffold)
    if as_json:
        print_json(_document(scaffold, files))
        return
    print_line(f"made project {scaffold.name} in {scaffold.folder}: {', '.join(files)}")
    if scaffold.syncs:
        print_table(
            ("sync", "source", "target", "key", "cursor"),
            (
                (
                    sync.name,
                    sync.source,
                    sync.target,
                    ", ".join(sync.proposal.key),
                    sync.proposal.cursor + (" (or NULL)" if sync.proposal.nullable else ""),
                )
                for sync in scaffold.syncs
            ),
        )
    if scaffold.group is not None:
        print_line(f"{scaffold.group.source} → {scaffold.group.target}:")
        print_table(
            ("sync", "mode", "key", "cursor"),
            (
                (sync.name, sync.mode, ", ".join(sync.key or ()) or "none", sync.cursor or "none")
                for sync in scaffold.group.expansion.syncs
            ),
        )
    for left_out in scaffold.left_out:
        print_line(f"not synced: {left_out.relation}: {left_out.reason}")
    _print_next(scaffold)


def _print_next(scaffold: Scaffold) -> None:
    print_line("")
    print_line("next:")
    if scaffold.folder != Path.cwd():
        print_line(f"  cd {_shell_word(scaffold.folder)}")
    if scaffold.template is not None:
        print_line("  tidegate event generate --count 100000")
        print_line("  tidegate event run")
        print_line("  tidegate event status")
        return
    if not scaffold.syncs and scaffold.group is None:
        print_line("  declare a sync in tidegate.toml; the file shows how")
    print_line("  tidegate plan")
    print_line("  tidegate run --all")
    print_line("  tidegate verify --all")


def _shell_word(folder: Path) -> str:
    import shlex

    return shlex.quote(str(folder))


def _document(scaffold: Scaffold, files: list[str]) -> dict[str, object]:
    return {
        "folder": str(scaffold.folder),
        "name": scaffold.name,
        "files": files,
        "template": scaffold.template,
        "connection": scaffold.connection,
        "variable": scaffold.variable,
        "group": None
        if scaffold.group is None
        else {
            "name": scaffold.connection,
            "source": scaffold.group.source,
            "target": scaffold.group.target,
            "tables": [
                {
                    "name": sync.name,
                    "source": str(sync.source),
                    "target": str(sync.target),
                    "mode": sync.mode,
                    "key": sync.key,
                    "cursor": sync.cursor,
                    "null_cursor": sync.null_cursor,
                    "notes": sync.notes,
                }
                for sync in scaffold.group.expansion.syncs
            ],
        },
        "syncs": [
            {
                "name": sync.name,
                "source": str(sync.source),
                "target": str(sync.target),
                "key": sync.proposal.key,
                "cursor": sync.proposal.cursor,
                "null_cursor": "include" if sync.proposal.nullable else None,
                "notes": sync.proposal.notes,
            }
            for sync in scaffold.syncs
        ],
        "left_out": [
            {"table": str(one.relation), "reason": one.reason} for one in scaffold.left_out
        ],
    }
