"""`tidegate adopt`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import (
    HERE,
    AsJson,
    DryRun,
    Profile,
    ProjectFolder,
    TakeTable,
    open_project,
)
from tidegate.cli.output import print_json, print_line, translated

if TYPE_CHECKING:
    from tidegate.admin.adopted_table import Adoption


def adopt(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The sync whose target is filled.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VALUE", help="Rows up to this cursor value count as loaded."),
    ] = None,
    from_target_max: Annotated[
        bool,
        typer.Option(
            "--from-target-max",
            help="Go on from the target's highest cursor value, which is read again.",
        ),
    ] = False,
    back: Annotated[
        str | None,
        typer.Option(
            "--back",
            metavar="SPAN",
            help='Begin so far below the target\'s highest value, such as "1 hour" or 1000.',
        ),
    ] = None,
    dry_run: DryRun = False,
    take_over: TakeTable = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Take over a target table that is filled already, without loading it again.

    Example: tidegate adopt orders --from-target-max
    """
    with translated(f"adopting {name}"), open_project(project, profile) as opened:
        found = opened.adopt(
            name,
            at=at,
            from_target_max=from_target_max,
            back=back,
            take_over=take_over,
            dry_run=dry_run,
        )
    if as_json:
        print_json(found)
        return
    _print(found)


def _print(found: Adoption) -> None:
    what = "adopted" if found.adopted else "would adopt"
    about = "" if found.rows_above_are_exact else "about "
    print_line(f"{found.sync}: {what} {found.target} with its {found.rows:,} rows")
    print_line(
        f"  it goes on after {found.watermark}; {about}{found.rows_above:,} rows of the source lie "
        "above"
    )
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    if found.adopted:
        print_line(f"  next: tidegate run {found.sync}")
        print_line(
            f"  then: tidegate verify {found.sync}, for rows that the former loader has missed"
        )
