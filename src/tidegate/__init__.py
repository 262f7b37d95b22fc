"""Data pipelines that can be killed anywhere and run again, and still leave the target right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.version import __version__

__all__ = ["Project", "__version__", "open", "publish", "sync"]

if TYPE_CHECKING:
    from tidegate.declare import sync
    from tidegate.project import Project, publish

    open = Project.open


def __getattr__(name: str) -> Any:
    # Importing tidegate must cost nothing: the command line starts with it.
    if name == "sync":
        from tidegate.declare import sync

        return sync
    if name in ("Project", "open", "publish"):
        from tidegate.project import Project, publish

        return {"Project": Project, "open": Project.open, "publish": publish}[name]
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
