"""The facts of events go to a lake by an ordinary sync: exactly, and only what is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from integration import event_page
from integration.cached_lakes import cached
from integration.conftest import MakePlace, Place
from integration.lakes import make_lake_project
from integration.raw_events import run_phases, write_model
from tidegate.core.relation import Endpoint
from tidegate.events.generator import Generation, generate_events
from tidegate.load.planner import plan_project
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.verify.verify import verify_sync

EXPORT = event_page.export()
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


COPY = (
    "INSERT INTO warehouse.fact_events (event_hash, occurred_at, account_id, event_type)"
    " SELECT sha256(event_hash), occurred_at, account_id, event_type"
    " FROM warehouse.fact_events LIMIT 1"
)


def fill(project: Project, seed: int, count: int = 300, **more: Any) -> int:
    """Add events and process them; returns how many facts there are new."""
    plan = Generation(count, seed, more.pop("until", TODAY), **more)
    generate_events(project.context, plan)
    return run_phases(project)[0].facts


def test_facts_are_exported_exactly_and_late_ones_come_with_the_next_run(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(
        make_place, warm_spark, EXPORT, events={"connection": "warehouse"}
    )
    write_model(place)
    first = fill(project, 1)
    planned = plan_project(project.context, project.syncs.values())
    assert not planned.refusals, planned.refusals
    assert planned.plans[0].guarantee == "exact"
    assert planned.plans[0].rows == first
    assert project.run("fact_events").outcome.changed == first
    # A sync puts its new table into the cache at once.
    found = cached(place, Endpoint.parse(EXPORT["target"]))
    assert found is not None
    assert found.facts is not None
    assert (found.facts.records, found.orphans is None) == (first, False)

    # A batch that commits late is not passed over.
    with place.target.connect() as slow:
        slow.execute("BEGIN")
        slow.execute(COPY)
        newer = fill(project, 2, count=100)
        assert project.run("fact_events").found_nothing
        slow.execute("COMMIT")
    # Events of months ago, into partitions that are made for them, below everything loaded.
    late = fill(project, 3, count=100, until=TODAY - timedelta(days=200))
    assert project.run("fact_events").outcome.changed == newer + 1 + late
    check(project, place)
    assert project.run("fact_events").found_nothing


def check(project: Project, place: Place) -> None:
    found = verify_sync(project.context, project.sync("fact_events"))
    assert (found.verdict, found.difference) == ("equal", None)
    assert found.target_rows == place.target.value("SELECT count(*) FROM warehouse.fact_events")
