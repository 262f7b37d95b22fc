"""A full refresh that failed after it had begun."""

from __future__ import annotations

import pytest

from integration.conftest import Place
from integration.orders import CREATE, FILL, ORDERS, plan_one
from integration.without_spark import Make, make
from tidegate.core.errors import TidegateError
from tidegate.load.engine import FINISHES_REFRESH
from tidegate.project import Project

__all__ = ["make"]

APPEND = {**ORDERS, "mode": "append"}
REFUSE = "CREATE TRIGGER refuse BEFORE DELETE OR TRUNCATE ON raw.orders EXECUTE FUNCTION refuse()"
FUNCTION = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now'; END$$"
)


def fail_refresh(project: Project, place: Place, gone: int) -> None:
    """A row has gone from the source, and the old rows cannot be deleted."""
    before = ids(place)
    place.source.execute(f"DELETE FROM orders WHERE id = {gone}")
    place.target.execute(REFUSE)
    with pytest.raises(TidegateError, match="not now"):
        project.run("orders", full_refresh=True)
    assert ids(place) == before
    place.target.execute("DROP TRIGGER refuse ON raw.orders")


def ids(place: Place) -> list[int]:
    return [row[0] for row in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]


def warnings(place: Place) -> tuple[str, ...]:
    return tuple(plan_one(place.open()).warnings)


def test_a_refresh_that_failed_is_called_off_begun_anew_or_finished(make: Make) -> None:
    project, place = make(APPEND, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.target.execute(FUNCTION)

    # A person who moves the watermark calls it off.
    fail_refresh(project, place, 1)
    project.watermark("orders").set("2026-01-01 00:10:00+00", reason="no refresh after all")
    assert FINISHES_REFRESH not in warnings(place)
    assert project.run("orders").found_nothing
    assert ids(place) == list(range(1, 11))

    # Asked for again it begins anew.
    fail_refresh(project, place, 2)
    assert project.run("orders", full_refresh=True).outcome.notes == []
    assert ids(place) == list(range(3, 11))

    # A plain run finishes it, and plan says so.
    fail_refresh(project, place, 3)
    plan = plan_one(place.open())
    assert (plan.rows, plan.batches) == (7, 1)
    assert FINISHES_REFRESH in plan.warnings
    assert project.run("orders").outcome.notes == [FINISHES_REFRESH]
    assert ids(place) == list(range(4, 11))
    assert FINISHES_REFRESH not in warnings(place)
    assert project.run("orders").found_nothing
