"""A project that takes events in, and makes of them what the template says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from integration.conftest import MakePlace, Place
from tidegate.admin.scaffold import other_files
from tidegate.events.generator import Generation, Totals, generate_events
from tidegate.events.model import Processed
from tidegate.events.process import process
from tidegate.events.project_events import find_events
from tidegate.events.provision import provision
from tidegate.events.refresh import RefreshEnd, refresh
from tidegate.events.tables import ensure_tables
from tidegate.project import Project

UNTIL = datetime(2026, 11, 1, tzinfo=UTC)


def event_place(
    make_place: MakePlace, *syncs: Any, made: bool = True, more: Any = None, **sections: Any
) -> Place:
    """Its events come into the warehouse; `made` says whether their tables are there already."""
    events = {"connection": "warehouse", **(more or {})}
    place = make_place(*syncs, events=events, **sections)
    write_model(place)
    if made:
        with place.open() as project, project.context.databases.lease("warehouse") as connection:
            ensure_tables(connection, find_events(project.context))
    return place


def write_model(place: Place) -> None:
    for name, text in other_files().items():
        path = place.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generate(
    project: Project,
    count: int,
    *,
    seed: int = 7,
    until: datetime = UNTIL,
    malformed: float = 0.1,
) -> Totals:
    """Add made-up events, and say what they come to."""
    plan = Generation(count, seed, until, 40, 0.1, malformed, 0.05)
    return generate_events(project.context, plan).totals


def run_phases(project: Project) -> tuple[Processed, list[RefreshEnd]]:
    """All three phases, one after the other, in this process."""
    context, events = project.context, find_events(project.context)

    def make(months: Any) -> None:
        with context.databases.lease(events.connection) as connection:
            provision(context, events, connection, months=months)

    make(())
    processed = process(
        context,
        events,
        attempt_id="0" * 16,
        budget_seconds=300,
        check_alive=lambda: None,
        provision=make,
    )
    with context.databases.lease(events.connection) as connection:
        return processed, refresh(context, events, connection, check_alive=lambda: None)
