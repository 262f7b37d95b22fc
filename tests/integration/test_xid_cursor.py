"""An xid8 column as cursor: the id of the transaction, read below the oldest one that is open."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import MakeProject, Place
from integration.test_snapshot_sync import plan, same, verify
from tidegate.core.errors import UsageError

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "xid"}
CODE = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="xid", batch_rows=4)
def orders(rows):
    return rows
"""


def seed(place: Place) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text,"
        " xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "CREATE INDEX ON orders (xid)",
    )
    for number in range(1, 11):
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 'n{number}')")


@pytest.mark.parametrize("transformed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_rows_of_open_transactions_wait_and_none_is_lost(
    make_project: MakeProject, transformed: bool
) -> None:
    options: Any = {"pipelines": CODE} if transformed else {}
    syncs = [] if transformed else [{**ORDERS, "batch_rows": 4}]
    project, place = make_project(*syncs, databases=2, **options)
    seed(place)
    first = project.run("orders")
    assert [load.rows for load in first.loads] == [4, 4, 2]
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("UPDATE orders SET name = 'x', xid = pg_current_xact_id() WHERE id = 2")
        late.execute("SAVEPOINT a")
        late.execute("INSERT INTO orders VALUES (11, 'late')")
        place.source.execute("INSERT INTO orders VALUES (12, 'quick')")
        held = project.run("orders")
        assert held.found_nothing
        assert held.outcome.horizon is not None
        assert held.outcome.horizon.held_by is not None
        if not transformed:
            assert (plan(project).guarantee, plan(project).rows) == ("exact", 0)
        late.execute("COMMIT")
    assert project.run("orders").outcome.changed == 3
    assert same(place)
    kind = "SELECT pg_typeof(xid)::text FROM raw.orders LIMIT 1"
    assert place.target.value(kind) == "xid8"
    assert verify(project).difference is None


def test_ids_of_different_length_are_ordered_as_numbers(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "lookback": 100}, databases=2)
    seed(place)
    place.source.execute("UPDATE orders SET xid = id::text::xid8 WHERE id >= 9")
    project.run("orders")
    at = project.watermark("orders")
    assert int(str(at.value)) > 100
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    assert project.run("orders").outcome.changed == 1
    assert project.why("orders", id=11).reason == "equal"
    with pytest.raises(UsageError, match="counts transactions"):
        project.backfill("orders", low="1", high="9")
    at.rewind("9", reason="again")
    assert [load.rows for load in project.run("orders").loads] == [1, 10]
    assert same(place)
