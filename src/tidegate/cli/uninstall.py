"""`tidegate db uninstall`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, DryRun, Profile, ProjectFolder, Yes, open_project
from tidegate.cli.output import print_json, print_line
from tidegate.cli.translation import translated
from tidegate.errors import UsageError

if TYPE_CHECKING:
    from tidegate.insight.premises import Premises
    from tidegate.insight.uninstall import Installation


def uninstall(
    connections: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONNECTION…", help="Connections, or control; by default all."),
    ] = None,
    yes: Yes = False,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Remove also what other projects or control planes use."),
    ] = False,
    dry_run: DryRun = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List what Tidegate made in the project's databases, and remove it; never a target table.

    Example: tidegate db uninstall warehouse
    """
    from tidegate.insight import uninstall as work

    with open_project(project, profile) as opened:
        context = opened.context
        with translated("looking for what Tidegate made"):
            found = work.find_installation(context, connections or (), shared=shared)
        server = context.databases.embedded
        folder = str(server.directory) if server.directory.exists() else None
        removing = bool(found.premises) and not dry_run
        if not as_json:
            _print(found)
        if removing:
            if not yes:
                _ask()
            work.uninstall(context, found, shared=shared)
    if as_json:
        print_json({"removed": removing, **_document(found, folder)})
        return
    if found.premises:
        print_line(
            "removed; the target tables are as they were" if removing else "nothing was removed"
        )
    _print_notes(found, connections or [], folder)


def _print(found: Installation) -> None:
    if not found.premises:
        print_line("Tidegate has nothing in these databases")
    for one in found.premises:
        scope = "" if one.whole else f", only what is of project {found.owner.project}"
        print_line(f"{one.connection}, schema {one.schema} ({one.role}{scope}):")
        if not one.parts:
            print_line("  nothing")
        for part in one.parts:
            if part.kind == "rows":
                print_line(f"  {part.rows:,} rows of {part.name}, which stays")
            else:
                rows = "" if part.rows is None else f", {part.rows:,} rows"
                print_line(f"  {part.kind} {part.name}{rows}")
        if one.kept:
            print_line(f"  stays, and the schema with it: {', '.join(one.kept)}")
        if any("(the lake's catalog)" in text for text in one.kept):
            print_line("  the catalog is the only way to the lake's tables, so it is never removed")
        if one.shared_with:
            what = "is used as well by" if not one.whole else "WILL BE GONE ALSO FOR"
            print_line(f"  {what} {', '.join(one.shared_with)}")
        if not one.whole:
            print_line("  --shared removes all of it")


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UsageError("removing this needs a yes", "see what --dry-run lists, then add --yes")
    if not typer.confirm("remove this?", err=True):
        print_line("nothing was removed")
        raise typer.Exit(1)


def _print_notes(found: Installation, connections: list[str], folder: str | None) -> None:
    for name, problem in found.unreachable.items():
        sys.stderr.write(f"note: {name} could not be searched: {problem}\n")
    if connections == ["control"] and found.premises and found.premises[0].whole:
        sys.stderr.write(
            "note: the ledgers stay; under a new control plane each table needs: tidegate run NAME "
            "--take-over\n"
        )
    if folder is not None:
        print_line(
            f"the project's own PostgreSQL stays, in {folder}; to have it gone: tidegate db stop, "
            "then delete that folder"
        )


def _document(found: Installation, folder: str | None) -> dict[str, Any]:
    return {
        "found": [_premises(one) for one in found.premises],
        "not_searched": found.unreachable,
        "embedded": folder,
    }


def _premises(one: Premises) -> dict[str, Any]:
    return {
        "connection": one.connection,
        "role": one.role.value,
        "schema": one.schema,
        "whole": one.whole,
        "parts": [{"kind": part.kind, "name": part.name, "rows": part.rows} for part in one.parts],
        "kept": list(one.kept),
        "shared_with": list(one.shared_with),
    }
