"""Projects with events on real databases, whose batches are read in this process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from integration.conftest import MakePlace, Place
from tidegate.insight.template_events import other_files
from tidegate.pipeline.event_filling import generate_events
from tidegate.pipeline.event_generation import Generation, Totals
from tidegate.project import Project

UNTIL = datetime(2026, 11, 1, tzinfo=UTC)


def make_events(make_place: MakePlace, *, databases: int = 1, **settings: Any) -> Place:
    """A project of the template; its Spark is never started unless the settings say so."""
    given = {"connection": "warehouse", "spark_from": 1_000_000, **settings}
    place = make_place(events=given, databases=databases)
    for name, text in other_files().items():
        path = place.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return place


def generate(project: Project, count: int, seed: int = 7, **options: Any) -> Totals:
    """Add made-up events, and say what they come to."""
    shares = {"duplicates": 0.1, "malformed": 0.1, "late": 0.05, **options}
    plan = Generation(
        count,
        seed,
        shares.pop("until", UNTIL),
        40,
        shares["duplicates"],
        shares["malformed"],
        shares["late"],
    )
    return generate_events(project.context, plan).totals
