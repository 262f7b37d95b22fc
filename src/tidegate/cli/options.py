"""Options that several commands have, and the project they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.core.errors import UsageError

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
SyncNames = Annotated[list[str] | None, typer.Argument(help="Syncs, groups or group.table.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of a task; repeatable."),
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="How many syncs and tasks run side by side.")
]
SyncNamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(help="Syncs, groups or group.table; all of them when none is named."),
]
AllSyncs = Annotated[bool, typer.Option("--all", help="Every declared sync.")]
TwentyAtMost = Annotated[
    int | None, typer.Option("--limit", min=1, max=100_000, help="How many at most; 20 by default.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
FollowQueued = Annotated[
    bool, typer.Option("--follow", "-f", help="With --queue: watch until it ends.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AllowRemoval = Annotated[
    bool,
    typer.Option(
        "--allow-removal",
        help="Let more of the target go than [safety] max_removed says.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Take the table over from another control plane that is stopped."
    ),
]
TakeTable = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the table over from another control plane that is stopped, or from another "
        "sync, whose rows stay.",
    ),
]
HERE = Path()


# Given once, before the command, and good for every project it opens.
_overrides: dict[str, Any] = {}


def override_settings(given: list[str]) -> None:
    """Remember what `--set KEY=VALUE` asked for."""
    from tidegate.config.layers import parse_value

    _overrides.clear()
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {text!r} has no value", "write --set KEY=VALUE")
        _overrides[key.strip()] = parse_value(tuple(key.strip().split(".")), value)


def given_overrides() -> dict[str, Any]:
    """What `--set` asked for, for commands that open the project in other processes too."""
    return dict(_overrides)


def open_project(folder: Path, profile: str | None) -> Project:
    """Open the project a command works on."""
    from tidegate.project import Project

    return Project.open(folder, profile=profile, **_overrides)


def choose_syncs(names: list[str], all_: bool, declared: list[str]) -> list[str]:
    """The syncs a command was asked for."""
    if all_ and names:
        raise UsageError("--all and names were both given", "give one of them")
    if all_:
        if not declared:
            raise UsageError(
                "the project declares no sync", "add a [sync.NAME] section to tidegate.toml"
            )
        return declared
    if not names:
        raise UsageError(
            "which sync?",
            f"name one or more of {', '.join(declared) or '(none declared)'}, or --all",
        )
    return list(dict.fromkeys(names))
