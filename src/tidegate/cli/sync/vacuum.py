"""`tidegate vacuum`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.options import (
    HERE,
    AllSyncs,
    AsJson,
    DryRun,
    Profile,
    ProjectFolder,
    SyncNames,
    choose_syncs,
    open_project,
)
from tidegate.cli.output import print_error, print_json, print_line, translated
from tidegate.core.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.maintenance.vacuum import VacuumReport


def vacuum(
    names: SyncNames = None,
    all_: AllSyncs = False,
    dry_run: DryRun = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Remove superseded versions that append with a key has kept; the newest always stay.

    Example: tidegate vacuum orders --dry-run
    """
    documents: list[Any] = []
    worst = 0
    with open_project(project, profile) as opened:
        for sync in opened.expand(choose_syncs(names or [], all_, opened.names)):
            name = sync.name
            try:
                with translated(f"vacuuming {name}"):
                    found = opened.vacuum(sync, dry_run=dry_run)
            except TidegateError as error:
                worst = error.exit_code if worst in (0, error.exit_code) else 1
                documents.append({"sync": name, "error": error.message, "hint": error.hint})
                if not as_json:
                    print_error(
                        TidegateError(f"{name}: {error.message}", error.hint), as_json=False
                    )
                continue
            documents.append(found)
            if not as_json:
                print_line(_line(found))
    if as_json:
        print_json(documents)
    if worst:
        raise typer.Exit(worst)


def _line(found: VacuumReport) -> str:
    if found.note is not None:
        return f"{found.sync}: nothing to do, {found.note}"
    if not found.rows:
        return f"{found.sync}: no superseded versions"
    what = "would remove" if found.dry_run else "removed"
    return f"{found.sync}: {what} {found.rows:,} superseded versions ({_size(found.bytes)})"


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
