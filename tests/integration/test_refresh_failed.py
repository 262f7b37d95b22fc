"""A full refresh that failed after it had begun."""

from __future__ import annotations

from typing import Any

import pytest

from integration.orders import CREATE, FILL, ORDERS, plan_one
from tidegate.errors import TidegateError
from tidegate.pipeline.course import FINISHES_REFRESH
from tidegate.project import Project

APPEND = {**ORDERS, "mode": "append"}
REFUSE = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now'; END$$",
    "CREATE TRIGGER refuse BEFORE DELETE OR TRUNCATE ON raw.orders EXECUTE FUNCTION refuse()",
)


@pytest.fixture
def failed(make_project: Any) -> tuple[Project, Any]:
    """A project whose full refresh could not delete the old rows."""
    project, place = make_project(APPEND, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 1")
    place.target.execute(*REFUSE)
    with pytest.raises(TidegateError, match="not now"):
        project.run("orders", full_refresh=True)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
    place.target.execute("DROP TRIGGER refuse ON raw.orders")
    return project, place


def ids(place: Any) -> list[int]:
    return [row[0] for row in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]


def test_a_plain_run_finishes_it_and_plan_says_so(failed: tuple[Project, Any]) -> None:
    project, place = failed
    plan = plan_one(place.open())
    assert (plan.rows, plan.batches) == (9, 1)
    assert FINISHES_REFRESH in plan.warnings
    report = project.run("orders")
    assert report.outcome.notes == [FINISHES_REFRESH]
    assert ids(place) == list(range(2, 11))
    assert FINISHES_REFRESH not in plan_one(place.open()).warnings
    assert project.run("orders").found_nothing


def test_asked_for_again_it_begins_anew(failed: tuple[Project, Any]) -> None:
    project, place = failed
    report = project.run("orders", full_refresh=True)
    assert report.outcome.notes == []
    assert ids(place) == list(range(2, 11))


def test_a_person_who_moves_the_watermark_calls_it_off(failed: tuple[Project, Any]) -> None:
    project, place = failed
    project.watermark("orders").set("2026-01-01 00:10:00+00", reason="no refresh after all")
    assert FINISHES_REFRESH not in plan_one(place.open()).warnings
    assert project.run("orders").found_nothing
    assert ids(place) == list(range(1, 11))
