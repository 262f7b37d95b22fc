"""A sync by its changes: the first copy, what follows it, and the slot behind it."""

from __future__ import annotations

import threading

import pytest

from integration.cdc_places import (
    FILL,
    ORDERS,
    PUBLICATIONS,
    SLOTS,
    is_equal,
    leave_nothing,
    loaded_orders,
    make_cdc,
    orders_sync,
    rows,
    slot_of,
)
from integration.conftest import Make, MakePlace, MakeProject, open_without_spark
from integration.filled_lakes import lake_place, open_table
from tidegate.core.batch import BatchKind
from tidegate.core.errors import DeclarationError, LoadError, SourceError
from tidegate.core.watermark import lsn_value
from tidegate.spark.session import SparkSessions
from tidegate.verify.repair import refuse_repair
from tidegate.verify.report import Verdict

__all__ = ["make_cdc"]

ITEMS = orders_sync(name="items", source="shop:public.items", target="warehouse:raw.items")
ITEMS_TABLE = "CREATE TABLE items (id int PRIMARY KEY, name text)"
MARKED = "SELECT id FROM raw.orders WHERE deleted_at IS NOT NULL ORDER BY 1"


def test_what_changed_follows_in_whole_transactions(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync())
    place.source.execute(ORDERS, FILL)

    first = project.run("orders")

    assert first.status == "done"
    assert [load.batch.kind for load in first.loads] == [BatchKind.FULL]
    assert is_equal(place)
    assert slot_of(place.source)[1] == first.watermark
    place.source.execute(
        "INSERT INTO orders VALUES (10, 10, 'new')",
        "UPDATE orders SET note = 'changed' WHERE id <= 3",
        "DELETE FROM orders WHERE id = 5",
        "UPDATE orders SET id = 77 WHERE id = 7",
    )

    second = project.run("orders")

    assert [load.batch.kind for load in second.loads] == [BatchKind.CHANGES]
    assert second.loads[0].batch.low == first.watermark
    assert is_equal(place)
    assert slot_of(place.source)[1] == second.watermark

    third = project.run("orders")
    assert third.found_nothing
    assert third.watermark == second.watermark


def test_the_slot_stays_where_it_is_while_the_target_refuses_the_rows(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc)
    before = slot_of(place.source)
    place.target.execute("ALTER TABLE raw.orders ADD CONSTRAINT refuse CHECK (id < 10)")
    place.source.execute("INSERT INTO orders VALUES (10, 10, 'new')")

    with pytest.raises(LoadError, match="publishing into"):
        project.run("orders")

    assert slot_of(place.source) == before
    place.target.execute("ALTER TABLE raw.orders DROP CONSTRAINT refuse")
    project.run("orders")
    assert is_equal(place)


def test_batches_end_with_a_transaction_and_none_is_left(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc, batch_rows=5)
    for number in range(100, 112):
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 1, 'one')")
    place.source.execute("INSERT INTO orders SELECT i, 2, 'many' FROM generate_series(200, 250) i")

    report = project.run("orders")

    assert len(report.loads) > 2
    assert max(load.rows for load in report.loads) == 51
    assert is_equal(place)

    # A truncate empties the target before what came after.
    place.source.execute("TRUNCATE orders", "INSERT INTO orders VALUES (500, 5, 'after')")
    report = project.run("orders")
    assert report.loads[0].batch.kind is BatchKind.FULL
    assert is_equal(place)
    for statement in ("TRUNCATE orders", "INSERT INTO orders VALUES (501, 5, 'after')"):
        place.source.execute(statement)
        project.run("orders")
        assert is_equal(place)


def test_nothing_is_lost_between_the_copy_and_the_changes(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync())
    place.source.execute(ORDERS, FILL)
    done = threading.Event()

    def write() -> None:
        with place.source.connect() as connection:
            number = 1000
            while not done.is_set():
                number += 1
                connection.execute("INSERT INTO orders VALUES (%s, 1, 'y')", (number,))
                connection.execute("DELETE FROM orders WHERE id = %s", (number - 7,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copied = project.run("orders", max_batches=1)
    finally:
        done.set()
        writer.join()
    project.run("orders")

    assert copied.rows < 2000
    assert is_equal(place)


def test_deleted_rows_stay_where_deletes_are_soft_until_they_return(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc, deletes="soft")
    place.source.execute("DELETE FROM orders WHERE id <= 2")
    project.run("orders")
    assert place.target.execute(MARKED) == [(1,), (2,)]

    place.source.execute("INSERT INTO orders VALUES (1, 1, 'back')")
    project.run("orders")
    assert place.target.execute(MARKED) == [(2,)]

    place.source.execute("INSERT INTO orders VALUES (2, 2, 'back')")
    project.run("orders", full_refresh=True)
    assert place.target.execute(MARKED) == []
    assert rows(place.target, "raw.orders", "id, total, note") == rows(place.source, "orders")


def test_a_lake_has_marks_and_is_compared_beside_what_waits(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = lake_place(make_place, orders_sync(target="lake:raw.orders", deletes="soft"))
    place.source.execute(ORDERS, FILL)
    with place.open(warm_spark) as project:
        project.run("orders")
        place.source.execute("DELETE FROM orders WHERE id <= 2")
        project.run("orders")
        found = open_table(place).scan().to_arrow().to_pylist()
        assert len(found) == 9
        assert sorted(row["id"] for row in found if row["deleted_at"] is not None) == [1, 2]

        place.source.execute(
            "INSERT INTO orders VALUES (1, 1, 'back')",
            "UPDATE orders SET id = 30 WHERE id = 3",
            "DELETE FROM orders WHERE id = 4",
        )
        compared = project.verify("orders")
        assert compared.verdict is Verdict.EQUAL
        assert compared.not_yet_loaded == 4
        assert compared.notes == ()
        with pytest.raises(DeclarationError, match="is not repaired"):
            refuse_repair(project.sync("orders"))

        project.run("orders", full_refresh=True)
        found = open_table(place).scan().to_arrow().to_pylist()
        assert [row["id"] for row in found if row["deleted_at"] is not None] == []
        assert sorted(row["id"] for row in found) == [1, 5, 6, 7, 8, 9, 30]
    leave_nothing(place.source)


def test_a_transformation_has_marks_and_needs_values_that_do_not_change(
    make_project: MakeProject,
) -> None:
    code = (
        "import tidegate as tg\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders', changes='cdc',"
        " deletes='soft')\n"
        "def orders(df):\n"
        "    return df.drop('note')\n"
    )
    project, place = make_project(databases=2, pipelines=code)
    place.source.execute(ORDERS, FILL)
    with pytest.raises(SourceError, match="too large for a row"):
        project.run("orders")
    place.source.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    project.run("orders")
    place.source.execute(
        "DELETE FROM orders WHERE id <= 2", "UPDATE orders SET id = 30 WHERE id = 3"
    )
    project.run("orders")
    assert place.target.execute(MARKED) == [(1,), (2,), (3,)]
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
    leave_nothing(place.source)


def test_two_tables_share_a_slot_which_waits_for_the_slower(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync(batch_rows=3), ITEMS)
    place.source.execute(ORDERS, FILL, ITEMS_TABLE)
    project.run("orders")
    behind = project.run("items").watermark
    assert behind is not None
    for number in range(4):
        place.source.execute(
            f"INSERT INTO orders VALUES ({100 + number}, 1, 'n')",
            f"INSERT INTO items VALUES ({number}, 'i')",
        )

    ahead = project.run("orders").watermark

    assert ahead is not None
    assert lsn_value(slot_of(place.source)[1]) <= lsn_value(behind) < lsn_value(ahead)
    # What it has behind it comes again with every look, and does not count as its batch.
    for number in range(7):
        place.source.execute(f"INSERT INTO orders VALUES ({200 + number}, 1, 'n')")
    project.run("orders")
    assert is_equal(place)
    project.run("items")
    assert is_equal(place, "items")
    assert lsn_value(slot_of(place.source)[1]) > lsn_value(behind)


def test_a_group_reads_all_of_its_tables_by_one_slot(make_cdc: Make) -> None:
    group = {"name": "all", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
    project, place = make_cdc({**group, "changes": "cdc"})
    place.source.execute(ORDERS, FILL, ITEMS_TABLE, "CREATE TABLE keyless (v text)")
    for statement in ("INSERT INTO items VALUES (1, 'a')", "DELETE FROM orders WHERE id = 1"):
        place.source.execute(statement)
        for table in ("orders", "items"):
            project.run(f"all.{table}")
            assert is_equal(place, table)
    slot_of(place.source)
    with pytest.raises(DeclarationError, match="no primary key"):
        project.run("all.keyless")


def test_a_quiet_table_does_not_make_its_server_keep_the_log(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc)
    first = slot_of(place.source)[1]
    place.source.execute(
        "SELECT pg_logical_emit_message(false, 'busy', repeat('x', 17 << 20), true)"
    )

    report = project.run("orders")

    assert report.found_nothing
    assert report.watermark is not None
    assert lsn_value(report.watermark) - lsn_value(first) > 16 << 20
    assert slot_of(place.source)[1] == report.watermark


def test_whoever_goes_over_to_changes_begins_with_a_copy_and_leaves_no_slot(
    make_cdc: Make,
) -> None:
    project, place = make_cdc(orders_sync(changes="cursor", cursor="id"))
    file = place.folder / "tidegate.toml"
    by_cursor = file.read_text()
    by_log = by_cursor.replace('changes = "cursor"', 'changes = "cdc"')
    by_log = by_log.replace('cursor = "id"\n', "")
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 3")

    file.write_text(by_log)
    with open_without_spark(place) as again:
        with pytest.raises(DeclarationError, match='loaded without changes = "cdc" so far'):
            again.run("orders")
        again.run("orders", full_refresh=True)
    assert is_equal(place)

    file.write_text(by_log.replace('changes = "cdc"', 'changes = "snapshot"'))
    with (
        open_without_spark(place) as other,
        pytest.raises(DeclarationError, match="its changes was cdc and is now snapshot"),
    ):
        other.run("orders")

    assert len(place.source.execute(SLOTS)) == 1
    file.write_text(by_cursor)
    with open_without_spark(place) as back:
        back.run("orders", full_refresh=True)
    assert place.source.execute(SLOTS) == []
    assert place.source.execute(PUBLICATIONS) == []


def test_what_cannot_be_read_by_its_changes_is_refused_before_it_is_published(
    make_cdc: Make,
) -> None:
    refused: dict[str, tuple[dict[str, str], str]] = {
        "appended": ({"mode": "append"}, "keeps the target as its source is"),
        "by_cursor": ({"cursor": "id"}, "ordered by the source's log"),
        "some": ({"where": "id > 3"}, "where is not available"),
        "newest": ({"duplicates": "newest"}, "needs a key"),
    }
    others = [
        orders_sync(name=name, target=f"warehouse:raw.{name}", **values)
        for name, (values, _) in refused.items()
    ]
    project, place = make_cdc(orders_sync(key=["id"]), *others)
    place.source.execute(ORDERS)
    for name, (_, said) in refused.items():
        with pytest.raises(DeclarationError, match=said):
            project.run(name)

    place.source.execute("DROP TABLE orders", "CREATE TABLE orders (id int, v text)")
    place.source.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(SourceError, match="no replica identity"):
        project.run("orders")
    place.source.execute("UPDATE orders SET v = 'mine'")
    assert place.source.execute(PUBLICATIONS) == []

    place.source.execute(
        "ALTER TABLE orders ALTER id SET NOT NULL, ADD UNIQUE (id), REPLICA IDENTITY FULL"
    )
    project.run("orders")
    place.source.execute("UPDATE orders SET v = 'told'", "INSERT INTO orders VALUES (2)")
    project.run("orders")
    assert is_equal(place)
