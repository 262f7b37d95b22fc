"""Whose rows a target holds: what is not recorded of one sync is neither doubled nor removed."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import Make, MakePlace, Place, open_without_spark
from integration.orders import ORDERS
from tidegate.core.errors import TidegateError
from tidegate.load.planner import plan_project
from tidegate.project import Project
from tidegate.verify.verify import verify_sync


def seed(place: Place, first: int = 1, last: int = 5, table: str = "orders") -> None:
    place.source.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, updated_at timestamptz NOT"
        " NULL)",
        f"INSERT INTO {table} SELECT n, '2026-01-01'::timestamptz + n * interval '1 minute'"
        f" FROM generate_series({first}, {last}) n",
    )


def ids(place: Place) -> list[Any]:
    return [one for (one,) in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]


def refused(project: Project, *said: str, **options: Any) -> None:
    """By plan and by run, in the same words."""
    found = plan_project(project.context, [project.syncs["orders"]]).refusals
    with pytest.raises(TidegateError) as raised:
        project.run("orders", **options)
    for text in (str(raised.value), f"{found[0].message} {found[0].hint}"):
        assert all(part in text for part in said), text


@pytest.mark.parametrize("lost", ["DROP SCHEMA tidegate CASCADE", "DELETE FROM tidegate.etl_state"])
def test_rows_of_a_lost_ledger_are_not_appended_again(make: Make, lost: str) -> None:
    project, place = make({**ORDERS, "mode": "append"}, databases=2)
    seed(place)
    project.run("orders")
    place.target.execute(lost)
    seed(place, 6, 7)
    refused(
        project,
        "raw.orders holds rows, and no load of orders into it is recorded",
        "tidegate adopt orders --at VALUE",
        "tidegate run orders --full-refresh",
    )
    assert ids(place) == [1, 2, 3, 4, 5]
    if lost.startswith("DROP"):
        project.adopt("orders", at="2026-01-01 00:05+00")
        assert project.run("orders").rows == 2
    else:
        project.run("orders", full_refresh=True)
    assert ids(place) == [1, 2, 3, 4, 5, 6, 7]


def test_a_table_belongs_to_one_sync_of_one_project(make: Make, make_place: MakePlace) -> None:
    """Another project of the control plane, or of another one, neither adds nor removes rows."""
    mine, place = make(ORDERS, databases=2)
    seed(place)
    mine.run("orders")
    theirs = {**ORDERS, "source": "shop:public.others"}
    seed(place, 11, 13, "others")
    other = open_without_spark(make_place(theirs, name="crm", beside=place))
    owned = "raw.orders is loaded by shop.orders already", "tidegate remove NAME", "--take-over"
    for options in ({}, {"full_refresh": True}):
        refused(other, *owned, **options)
    with pytest.raises(TidegateError, match=r"is loaded by shop\.orders"):
        other.adopt("orders", at="2026-01-01")
    with pytest.raises(TidegateError, match=r"is loaded by shop\.orders"):
        other.watermark("orders").set("2026-01-01", reason="mine")

    # Both have loaded it, before that was refused.
    place.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name, version) VALUES"
        " ('crm.orders', 'raw.orders', 1)",
        "INSERT INTO raw.orders VALUES (11, now())",
    )
    for action in (
        lambda: verify_sync(mine.context, mine.syncs["orders"]),
        lambda: mine.verify("orders", repair=True),
        lambda: mine.backfill("orders", low="2026-01-01", high="2026-01-02"),
    ):
        with pytest.raises(TidegateError, match=r"is loaded by crm\.orders"):
            action()
    assert ids(place) == [1, 2, 3, 4, 5, 11]

    other.run("orders", take_over=True)
    assert ids(place) == [1, 2, 3, 4, 5, 11, 12, 13]
    assert place.target.execute("SELECT pipeline_name FROM tidegate.etl_state") == [("crm.orders",)]
    refused(mine, "raw.orders is loaded by crm.orders")
    assert other.run("orders").found_nothing
