"""An xid8 column as cursor: the id of the transaction, read below the oldest one that is open."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import MakePlace, MakeProject, Place
from integration.lakes import make_lake_project
from integration.test_snapshot_sync import plan, same, verify
from tidegate.errors import DeclarationError, UsageError
from tidegate.spark.session import SparkSessions

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "xid"}


def seed(place: Place, rows: int = 10) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text,"
        " xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "CREATE INDEX ON orders (xid)",
    )
    for number in range(1, rows + 1):
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 'n{number}')")


def change(session: Any, number: int) -> None:
    session.execute(f"UPDATE orders SET name = 'x', xid = pg_current_xact_id() WHERE id = {number}")


@pytest.mark.parametrize("transformed", [False, True])
def test_rows_of_open_transactions_wait_and_none_is_lost(
    make_project: MakeProject, transformed: bool
) -> None:
    code = (
        "import tidegate as tg\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders', cursor='xid',"
        " batch_rows=4)\n"
        "def orders(rows):\n"
        "    return rows\n"
    )
    options: Any = {"pipelines": code} if transformed else {}
    syncs = [] if transformed else [{**ORDERS, "batch_rows": 4}]
    project, place = make_project(*syncs, databases=2, **options)
    seed(place)
    first = project.run("orders")
    assert [load.rows for load in first.loads] == [4, 4, 2]
    with place.source.connect() as late:
        late.execute("BEGIN")
        change(late, 2)
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


def test_ids_of_different_length_are_ordered_as_numbers(
    make_project: MakeProject,
) -> None:
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


def test_an_xid_cursor_goes_into_a_lake_and_newer_rows_win_there(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    sync = {**ORDERS, "target": "lake:raw.orders"}
    project, place = make_lake_project(make_place, warm_spark, sync, databases=2)
    seed(place, 3)
    # As text this one is higher than every later id.
    place.source.execute("UPDATE orders SET xid = '99' WHERE id = 2")
    project.run("orders")
    with place.source.connect() as session:
        change(session, 2)
    assert project.run("orders").outcome.changed == 1
    found = verify(project)
    assert (found.verdict, found.target_rows) == ("equal", 3)


def test_of_several_rows_with_one_key_a_lake_cannot_tell_the_newest_by_it(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    sync = {**ORDERS, "target": "lake:raw.orders", "duplicates": "newest"}
    project, place = make_lake_project(make_place, warm_spark, sync)
    seed(place, 1)
    with pytest.raises(DeclarationError, match="is text in a lake"):
        project.run("orders")
