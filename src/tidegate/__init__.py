"""Data pipelines that can be killed anywhere and run again, and still leave the target right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.version import __version__

__all__ = ["Project", "__version__", "luigi_id", "needs", "open", "publish", "sync", "task"]

if TYPE_CHECKING:
    from tidegate.declare import needs, sync, task
    from tidegate.project import Project, publish
    from tidegate.tasks.luigi import luigi_id

    open = Project.open


def __getattr__(name: str) -> Any:
    # Importing tidegate must cost nothing: the command line starts with it.
    if name in ("needs", "sync", "task"):
        from tidegate import declare

        return getattr(declare, name)
    if name == "luigi_id":
        from tidegate.tasks.luigi import luigi_id

        return luigi_id
    if name in ("Project", "open", "publish"):
        from tidegate.project import Project, publish

        return {"Project": Project, "open": Project.open, "publish": publish}[name]
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
