"""A project that takes events in, and makes of them what the template says."""

from __future__ import annotations

from typing import Any

from integration.conftest import MakePlace, Place
from tidegate.insight.template_events import other_files
from tidegate.pipeline.event_tables import ensure_tables
from tidegate.pipeline.events import find_events


def event_place(
    make_place: MakePlace, *syncs: Any, made: bool = True, more: Any = None, **sections: Any
) -> Place:
    """Its events come into the warehouse; `made` says whether their tables are there already."""
    events = {"connection": "warehouse", **(more or {})}
    place = make_place(*syncs, events=events, **sections)
    for name, text in other_files().items():
        path = place.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if made:
        with place.open() as project, project.context.databases.lease("warehouse") as connection:
            ensure_tables(connection, find_events(project.context))
    return place
