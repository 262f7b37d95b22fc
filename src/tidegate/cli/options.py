"""Options that every command has, and the project they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.project import Project

ProjectFolder = Annotated[
    Path,
    typer.Option(
        "--project",
        "-C",
        envvar="TIDEGATE_PROJECT_DIR",
        help="The project's folder, or one below it.",
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", envvar="TIDEGATE_PROFILE", help="Profile to use.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
HERE = Path()


def open_project(folder: Path, profile: str | None) -> Project:
    """Open the project a command works on."""
    from tidegate.project import Project

    return Project.open(folder, profile=profile)
