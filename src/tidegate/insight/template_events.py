"""The project that `tidegate init --template events` makes: a star of product analytics."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

_FOLDER = ("templates", "events")
PROJECT_FILE = "tidegate.toml"


def project_text(name: str) -> str:
    """The text of tidegate.toml; `name` as TOML writes it."""
    return _root().joinpath(PROJECT_FILE).read_text(encoding="utf-8").format(name=name)


def other_files() -> dict[str, str]:
    """What lies beside tidegate.toml: names and texts."""
    return {path: text for path, text in sorted(_below(_root(), "")) if path != PROJECT_FILE}


def _root() -> Traversable:
    return files("tidegate.insight").joinpath(*_FOLDER)


def _below(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _below(item, f"{prefix}{item.name}/")
        elif item.name.endswith((".toml", ".sql")):
            found.append((prefix + item.name, item.read_text(encoding="utf-8")))
    return found
