"""`tidegate doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.config import Settings
    from tidegate.config.sync import Sync

_WIDTH = 4


def doctor(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Check Java, Spark's Python, disk, settings and databases, and say how to fix what is wrong.

    Outside a project it checks the machine alone. Exit code 1 when something stands in the way.

    Example: tidegate doctor
    """
    from tidegate.admin.doctor.examination import run_checks

    found = run_checks(
        project, load=lambda root: open_project(root, profile).settings, declared=_declared
    )
    if as_json:
        print_json({"project": found.project, "ok": found.is_well, "checks": found.checks})
    else:
        for check in found.checks:
            print_line(f"{check.level:<{_WIDTH}}  {check.name}: {check.found}")
            if check.fix:
                print_line(f"{'':<{_WIDTH}}    fix: {check.fix}")
        if found.project is None and found.is_well:
            print_line("no project here; make one: tidegate init")
    if not found.is_well:
        raise typer.Exit(1)


def _declared(settings: Settings) -> Iterable[Sync]:
    from tidegate.project import Project

    return Project(settings).expand()
