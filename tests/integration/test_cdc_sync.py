"""A sync by its changes: the first copy, what follows it, and the slot behind it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from integration.cdc_places import FILL, ORDERS, orders_sync, rows, slot_of
from integration.conftest import Database, MakeProject
from tidegate.errors import DeclarationError, LoadError, SourceError
from tidegate.model.batch import BatchKind
from tidegate.model.lsn import lsn_value


def assert_equal(source: Database, target: Database, table: str = "orders") -> None:
    assert rows(target, f"raw.{table}") == rows(source, table)


def test_the_first_run_copies_the_table_and_leaves_a_slot(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)

    report = project.run("orders")

    assert report.status == "done"
    assert [load.batch.kind for load in report.loads] == [BatchKind.FULL]
    assert_equal(place.source, place.target)
    assert slot_of(place.source)[1] == report.watermark


def test_what_changed_follows_in_whole_transactions(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    first = project.run("orders")
    place.source.execute(
        "INSERT INTO orders VALUES (10, 10, 'new')",
        "UPDATE orders SET note = 'changed' WHERE id <= 3",
        "DELETE FROM orders WHERE id = 5",
        "UPDATE orders SET id = 77 WHERE id = 7",
    )

    second = project.run("orders")

    assert [load.batch.kind for load in second.loads] == [BatchKind.CHANGES]
    assert second.loads[0].batch.low == first.watermark
    assert_equal(place.source, place.target)
    assert slot_of(place.source)[1] == second.watermark

    third = project.run("orders")
    assert third.found_nothing
    assert third.watermark == second.watermark


def test_the_slot_stays_where_it_is_while_the_target_refuses_the_rows(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    first = project.run("orders")
    place.target.execute("ALTER TABLE raw.orders ADD CONSTRAINT refuse CHECK (id < 10)")
    place.source.execute("INSERT INTO orders VALUES (10, 10, 'new')")

    with pytest.raises(LoadError, match="publishing into"):
        project.run("orders")

    assert slot_of(place.source)[1] == first.watermark
    place.target.execute("ALTER TABLE raw.orders DROP CONSTRAINT refuse")
    project.run("orders")
    assert_equal(place.source, place.target)


def test_batches_end_with_a_transaction_and_none_is_left(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(batch_rows=5), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    for number in range(100, 130):
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 1, 'one')")
    place.source.execute("INSERT INTO orders SELECT i, 2, 'many' FROM generate_series(200, 250) i")

    report = project.run("orders")

    assert len(report.loads) > 3
    assert max(load.rows for load in report.loads) == 51
    assert_equal(place.source, place.target)


def test_nothing_is_lost_between_the_copy_and_the_changes(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
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
    assert_equal(place.source, place.target)


def test_a_truncate_empties_the_target_before_what_came_after(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute("TRUNCATE orders", "INSERT INTO orders VALUES (500, 5, 'after')")

    report = project.run("orders")

    assert report.loads[0].batch.kind is BatchKind.FULL
    assert_equal(place.source, place.target)

    place.source.execute("TRUNCATE orders")
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (501, 5, 'after')")
    project.run("orders")
    assert_equal(place.source, place.target)


def test_deleted_rows_stay_where_deletes_are_soft_until_they_return(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(deletes="soft"), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id <= 2")
    project.run("orders")
    marked = "SELECT id FROM raw.orders WHERE deleted_at IS NOT NULL ORDER BY 1"
    assert place.target.execute(marked) == [(1,), (2,)]

    place.source.execute("INSERT INTO orders VALUES (1, 1, 'back')")
    project.run("orders")
    assert place.target.execute(marked) == [(2,)]

    place.source.execute("INSERT INTO orders VALUES (2, 2, 'back')")
    project.run("orders", full_refresh=True)
    assert place.target.execute(marked) == []
    assert rows(place.target, "raw.orders", "id, total, note") == rows(place.source, "orders")


def test_two_tables_share_a_slot_which_waits_for_the_slower(make_project: MakeProject) -> None:
    items = orders_sync(name="items", source="shop:public.items", target="warehouse:raw.items")
    project, place = make_project(orders_sync(), items, databases=2)
    place.source.execute(ORDERS, FILL, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    project.run("orders")
    behind = project.run("items").watermark
    assert behind is not None
    for number in range(20):
        place.source.execute(
            f"INSERT INTO orders VALUES ({100 + number}, 1, 'n')",
            f"INSERT INTO items VALUES ({number}, 'i')",
        )

    ahead = project.run("orders").watermark

    assert ahead is not None
    assert lsn_value(slot_of(place.source)[1]) <= lsn_value(behind) < lsn_value(ahead)
    place.source.execute("INSERT INTO orders VALUES (900, 1, 'n')")
    project.run("orders")
    assert_equal(place.source, place.target)
    project.run("items")
    assert_equal(place.source, place.target, "items")
    assert lsn_value(slot_of(place.source)[1]) > lsn_value(behind)


def test_a_reader_far_ahead_of_its_slot_gets_on(make_project: MakeProject) -> None:
    """What it has behind it comes again with every look, and must not count as its batch."""
    items = orders_sync(name="items", source="shop:public.items", target="warehouse:raw.items")
    project, place = make_project(orders_sync(batch_rows=3), items, databases=2)
    place.source.execute(ORDERS, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    project.run("items")
    project.run("orders")
    for round_ in range(3):
        for number in range(10):
            place.source.execute(f"INSERT INTO orders VALUES ({round_ * 10 + number}, 1, 'n')")
        project.run("orders")

    assert_equal(place.source, place.target)


def test_a_group_reads_all_of_its_tables_by_one_slot(make_project: MakeProject) -> None:
    group = {
        "name": "all",
        "source": "shop:public.*",
        "target": "warehouse:raw.{table}",
        "changes": "cdc",
    }
    project, place = make_project(group, databases=2)
    place.source.execute(
        ORDERS,
        FILL,
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "INSERT INTO items VALUES (1, 'a')",
        "CREATE TABLE keyless (v text)",
    )

    for name in ("all.orders", "all.items"):
        project.run(name)
    place.source.execute("DELETE FROM orders WHERE id = 1", "INSERT INTO items VALUES (2, 'b')")
    for name in ("all.orders", "all.items"):
        project.run(name)

    assert_equal(place.source, place.target)
    assert_equal(place.source, place.target, "items")
    slot_of(place.source)
    with pytest.raises(DeclarationError, match="no primary key"):
        project.run("all.keyless")


def test_a_quiet_table_does_not_make_its_server_keep_the_log(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL, "CREATE TABLE busy (v text)")
    first = project.run("orders").watermark
    assert first is not None
    place.source.execute(
        "INSERT INTO busy SELECT repeat(md5(i::text), 30) FROM generate_series(1, 25000) i"
    )

    report = project.run("orders")

    assert report.found_nothing
    assert report.watermark is not None
    assert lsn_value(report.watermark) - lsn_value(first) > 16 << 20
    assert slot_of(place.source)[1] == report.watermark


def test_a_sync_that_is_read_by_its_cursor_again_leaves_the_slot(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    file: Path = place.folder / "tidegate.toml"
    text = file.read_text().replace('changes = "cdc"', 'cursor = "id"')
    file.write_text(text)
    with place.open(project.context.spark) as again:
        again.run("orders", full_refresh=True)

    assert (
        place.source.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        )
        == []
    )
    assert place.source.execute("SELECT pubname FROM pg_publication") == []


def test_a_sync_that_was_loaded_otherwise_begins_with_a_copy(make_project: MakeProject) -> None:
    project, place = make_project(orders_sync(changes="cursor", cursor="id"), databases=2)
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    file: Path = place.folder / "tidegate.toml"
    text = file.read_text().replace('changes = "cursor"', 'changes = "cdc"')
    file.write_text(text.replace('cursor = "id"\n', ""))
    place.source.execute("DELETE FROM orders WHERE id = 3")
    with place.open(project.context.spark) as again:
        with pytest.raises(DeclarationError, match='loaded without changes = "cdc" so far'):
            again.run("orders")
        again.run("orders", full_refresh=True)
    assert_equal(place.source, place.target)
    file.write_text(file.read_text().replace('changes = "cdc"', 'changes = "snapshot"'))
    with (
        place.open(project.context.spark) as back,
        pytest.raises(DeclarationError, match="its changes was cdc and is now snapshot"),
    ):
        back.run("orders")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "append"}, "keeps the target as its source is"),
        ({"cursor": "id"}, "ordered by the source's log"),
        ({"where": "id > 3"}, "where is not available"),
        ({"duplicates": "newest"}, "needs a key"),
    ],
)
def test_what_has_no_meaning_with_changes_is_refused(
    make_project: MakeProject, values: dict[str, str], said: str
) -> None:
    project, place = make_project(orders_sync(**values))
    place.source.execute(ORDERS)
    with pytest.raises(DeclarationError, match=said):
        project.run("orders")


def test_a_table_without_identity_is_refused_before_it_is_published(
    make_project: MakeProject,
) -> None:
    project, place = make_project(orders_sync(key=["id"]))
    place.source.execute("CREATE TABLE orders (id int, v text)", "INSERT INTO orders VALUES (1)")
    with pytest.raises(SourceError, match="no replica identity"):
        project.run("orders")
    place.source.execute("UPDATE orders SET v = 'mine'")
    assert place.source.execute("SELECT pubname FROM pg_publication") == []

    place.source.execute(
        "ALTER TABLE orders ALTER id SET NOT NULL, ADD UNIQUE (id), REPLICA IDENTITY FULL"
    )
    project.run("orders")
    place.source.execute("UPDATE orders SET v = 'told'", "INSERT INTO orders VALUES (2)")
    project.run("orders")
    assert_equal(place.source, place.target)
