"""changes = "snapshot": rows are found by the transaction that wrote them, however late it ends."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import MakePlace, MakeProject, Place
from integration.lakes import make_lake_project
from tidegate.model.batch import BatchKind
from tidegate.model.plan import SyncPlan
from tidegate.model.verification import Verification
from tidegate.pipeline.plan import plan_project
from tidegate.pipeline.verify import verify_sync
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "changes": "snapshot",
}


WINDOWED = {**ORDERS, "cursor": "updated_at", "lookback": "1 hour"}


def seed(place: Place, rows: int = 10) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        f"INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, {rows}) i",
    )


def seed_stamped(place: Place) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, updated_at timestamptz)",
        "CREATE INDEX ON orders (updated_at)",
        "INSERT INTO orders SELECT i, 'n' || i, now() - i * interval '1 day'"
        " FROM generate_series(0, 9) i",
    )


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def plan(project: Project) -> SyncPlan:
    found = plan_project(project.context, project.syncs.values())
    assert not found.refusals, found.refusals
    return found.plans[0]


def same(place: Place, source: str = "orders", target: str = "raw.orders") -> bool:
    """Whether both tables hold the same rows, printed."""
    text = "SELECT t::text FROM {} t ORDER BY 1"
    return place.source.execute(text.format(source)) == place.target.execute(text.format(target))


def test_rows_of_a_transaction_that_was_open_come_with_the_run_after_it_ended(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    first = project.run("orders")
    assert (first.status, first.rows) == ("done", 10)
    assert same(place)
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (101, 'late')")
        late.execute("SAVEPOINT a")
        late.execute("INSERT INTO orders VALUES (102, 'under a savepoint')")
        late.execute("RELEASE SAVEPOINT a")
        late.execute(
            "DO $$ BEGIN BEGIN INSERT INTO orders VALUES (103, 'in a block');"
            " UPDATE orders SET name = 'changed' WHERE id = 3;"
            " EXCEPTION WHEN OTHERS THEN NULL; END; END $$"
        )
        place.source.execute("INSERT INTO orders VALUES (201, 'quick')")
        second = project.run("orders")
        assert second.rows == 1
        third = project.run("orders")
        assert third.found_nothing
        late.execute("COMMIT")
    fourth = project.run("orders")
    assert fourth.outcome.changed == 4
    assert same(place)
    assert project.run("orders").found_nothing


def test_an_application_clock_makes_a_cursor_miss_a_row_that_snapshot_and_cdc_find(
    make_project: MakeProject,
) -> None:
    by_cursor = {"name": "by_cursor", **ORDERS, "target": "warehouse:raw.by_cursor"}
    by_cursor |= {"changes": "cursor", "cursor": "updated_at"}
    by_log = {"name": "by_log", **ORDERS, "target": "warehouse:raw.by_log", "changes": "cdc"}
    project, place = make_project(ORDERS, by_cursor, by_log, databases=2)
    names = ("orders", "by_cursor", "by_log")
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders VALUES (1, now() - interval '1 minute')",
    )
    for name in names:
        project.run(name)
    # This one was stamped by a machine whose clock is five minutes slow.
    place.source.execute("INSERT INTO orders VALUES (2, now() - interval '5 minutes')")
    for name in names:
        project.run(name)
    ids = "SELECT id FROM raw.{} ORDER BY id"
    assert place.target.execute(ids.format("by_cursor")) == [(1,)]
    assert place.target.execute(ids.format("orders")) == [(1,), (2,)]
    assert place.target.execute(ids.format("by_log")) == [(1,), (2,)]
    missed = verify_sync(project.context, project.sync("by_cursor")).difference
    assert missed is not None
    assert verify(project).difference is None


def test_a_large_table_comes_in_key_ranges_and_what_is_written_meanwhile_in_the_next_pass(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 10}, databases=2)
    place.source.execute(
        "CREATE TABLE orders (region text, id int, name text, PRIMARY KEY (region, id))",
        "INSERT INTO orders SELECT chr(97 + i % 3), i, 'n' FROM generate_series(1, 35) i",
        "ANALYZE orders",
    )

    def write_behind(_: Any, load: Any) -> None:
        if load.batch.key_low is None and load.batch.low is None:
            place.source.execute("UPDATE orders SET name = 'behind' WHERE region = 'a' AND id < 9")
            place.source.execute("INSERT INTO orders VALUES ('a', 0, 'behind')")

    with place.source.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        report = project.run("orders", step=write_behind)
        assert [load.rows for load in report.loads] == [10, 10, 10, 5]
        markers = place.target.execute("SELECT update_id FROM tidegate.table_updates")
        assert {one for (one,) in markers} == {load.update_id for load in report.loads}
        assert not same(place)
        assert project.run("orders").outcome.changed == 3
        assert same(place)
        assert project.run("orders").found_nothing


def test_a_pass_that_was_left_open_goes_on_at_its_key_and_ends_at_its_first_snapshot(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 4}, databases=2)
    seed(place)
    project.run("orders", max_batches=1)
    half = project.watermark("orders").get()
    assert half.value is None
    assert half.position is not None
    began, reached = half.position
    assert reached == "4"
    place.source.execute("UPDATE orders SET name = 'behind' WHERE id = 1")
    assert not verify(project).difference, "what is not loaded yet is no difference"
    report = project.run("orders")
    assert [str(load.batch) for load in report.loads] == [
        "all rows, keys (4, 8]",
        "all rows, keys (8, …]",
        f"written since {began}",
    ]
    assert same(place)
    done = project.watermark("orders").get()
    assert done.position is None
    assert int(str(done.value)) > int(began)


def test_a_large_change_comes_in_key_ranges_as_well(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "batch_rows": 10, "partitions": 3}, databases=2)
    seed(place, 100)
    project.run("orders")
    place.source.execute("UPDATE orders SET name = 'again' WHERE id % 4 = 0")
    report = project.run("orders")
    assert [load.rows for load in report.loads] == [10, 10, 5]
    assert {load.batch.kind for load in report.loads} == {BatchKind.WRITTEN}
    assert same(place)


def test_rows_loaded_beside_an_open_transaction_are_not_loaded_again_and_again(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (101, 'late')")
        assert project.run("orders").rows == 10
        place.source.execute("INSERT INTO orders VALUES (11, 'quick')")
        second = project.run("orders")
        assert (second.rows, second.outcome.changed) == (1, 1)
        assert project.run("orders").found_nothing
        late.execute("ROLLBACK")
    assert project.run("orders").found_nothing
    moved = project.watermark("orders").moves()[0]
    assert moved.reason == "nothing changed"
    assert project.run("orders").found_nothing
    assert project.watermark("orders").moves()[0] == moved
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 11")
    assert project.run("orders").rows == 1
    assert same(place)


def test_a_row_whose_stamp_goes_back_replaces_the_newer_looking_one(
    make_project: MakeProject,
) -> None:
    project, place = make_project({**WINDOWED, "lookback": "10 days"}, databases=2)
    seed_stamped(place)
    project.run("orders")
    place.source.execute("UPDATE orders SET name = 'x', updated_at = now() - interval '3 days'")
    assert project.run("orders").outcome.changed == 10
    assert same(place)


def test_a_cursor_and_a_lookback_bound_how_far_back_rows_are_looked_for(
    make_project: MakeProject,
) -> None:
    project, place = make_project(WINDOWED, databases=2)
    seed_stamped(place)
    project.run("orders")
    place.source.execute(
        "INSERT INTO orders VALUES (11, 'within', now() - interval '50 minutes')",
        "INSERT INTO orders VALUES (12, 'further back', now() - interval '2 hours')",
        "INSERT INTO orders VALUES (13, 'not stamped', NULL)",
        "INSERT INTO orders VALUES (14, 'from the future', now() + interval '1 year')",
    )
    assert project.run("orders").rows == 3
    place.source.execute("INSERT INTO orders VALUES (15, 'within', now() - interval '50 minutes')")
    assert project.run("orders").rows == 1, "the row from the future hides no other"
    loaded = place.target.execute("SELECT id FROM raw.orders WHERE id > 10 ORDER BY id")
    assert loaded == [(11,), (13,), (14,), (15,)]
    verified = verify(project)
    assert verified.difference is not None, "a row that was passed over shows"
    why = project.why("orders", id=12)
    assert "further back than the lookback" in why.sentence


def test_with_a_cursor_and_a_lookback_the_index_is_used(make_project: MakeProject) -> None:
    project, place = make_project(WINDOWED, databases=2)
    seed_stamped(place)
    place.source.execute(
        "INSERT INTO orders SELECT i, 'old', now() - interval '30 days'"
        " FROM generate_series(100, 20000) i",
        "ANALYZE orders",
    )
    project.run("orders")
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 0")
    found = plan(project)
    assert "bounded by the lookback" in found.because
    assert found.cursor is not None
    (statement,) = found.statements
    explained = "\n".join(one for (one,) in place.source.execute(f"EXPLAIN {statement}"))
    assert "orders_updated_at_idx" in explained
    assert "Seq Scan" not in explained


@pytest.mark.parametrize(
    ("options", "keeps"), [({"mode": "delete_insert"}, 10), ({"mode": "append", "key": ["id"]}, 11)]
)
def test_other_modes_absorb_rows_that_come_twice(
    make_project: MakeProject, options: dict[str, Any], keeps: int
) -> None:
    project, place = make_project({**ORDERS, **options}, databases=2)
    seed(place)
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("UPDATE orders SET name = 'late' WHERE id = 1")
        project.run("orders")
        late.execute("COMMIT")
    project.run("orders")
    project.run("orders")
    assert same(place)
    table = "raw.orders_raw" if options["mode"] == "append" else "raw.orders"
    assert place.target.value(f"SELECT count(*) FROM {table}") == keeps


def test_a_transformation_sees_the_rows_that_were_written(make_project: MakeProject) -> None:
    code = (
        "import tidegate as tg\n"
        "from pyspark.sql import functions as f\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders',"
        " changes='snapshot')\n"
        "def orders(rows):\n"
        "    return rows.withColumn('name', f.upper('name'))\n"
    )
    project, place = make_project(databases=2, pipelines=code)
    seed(place)
    project.run("orders")
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (11, 'late')")
        assert project.run("orders").found_nothing
        late.execute("COMMIT")
    assert project.run("orders").outcome.changed == 1
    assert same(place, "(SELECT id, upper(name) FROM orders)")
    place.source.execute("INSERT INTO orders VALUES (12, 'waits')")
    assert verify(project).difference is None


def test_where_and_columns_are_read_as_everywhere(make_project: MakeProject) -> None:
    project, place = make_project(
        {**ORDERS, "where": "name <> 'n3'", "exclude_columns": ["secret"]}, databases=2
    )
    seed(place)
    place.source.execute("ALTER TABLE orders ADD secret text")
    assert project.run("orders").rows == 9
    place.source.execute("INSERT INTO orders VALUES (11, 'n3'), (12, 'n4')")
    assert project.run("orders").rows == 1
    assert same(place, "(SELECT id, name FROM orders WHERE name <> 'n3')")


def test_a_partition_that_is_attached_with_old_rows_is_loaded_whole(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high (id int PRIMARY KEY, name text)",
        "INSERT INTO high SELECT i, 'old' FROM generate_series(100, 109) i",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    project.run("orders")
    place.source.execute("ALTER TABLE orders ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")
    assert verify(project).not_yet_loaded == 10
    assert project.run("orders").rows == 10
    assert same(place)
    assert project.run("orders").found_nothing


def test_a_table_that_took_the_name_of_another_is_loaded_whole(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    place.source.execute("CREATE TABLE made_before (LIKE orders INCLUDING ALL)")
    place.source.execute("INSERT INTO made_before SELECT i, 'b' FROM generate_series(1, 20) i")
    project.run("orders")
    place.source.execute(
        "ALTER TABLE orders RENAME TO old_orders", "ALTER TABLE made_before RENAME TO orders"
    )
    project.run("orders")
    assert same(place)


def test_a_full_refresh_takes_out_what_was_deleted_and_goes_on_from_its_snapshot(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 2")
    assert project.run("orders").found_nothing
    assert "does not see deleted rows" in project.why("orders", id=2).sentence
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (11, 'late')")
        report = project.run("orders", full_refresh=True)
        assert report.loads[0].batch.kind is BatchKind.FULL
        late.execute("COMMIT")
    project.run("orders")
    assert same(place)


def test_a_watermark_is_shown_and_rewound_as_a_transaction(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    at = project.watermark("orders").get()
    assert at.cursor_type == "xid8"
    place.target.execute("DELETE FROM raw.orders WHERE id = 3")
    assert "somebody removed it" in project.why("orders", id=3).sentence
    project.watermark("orders").rewind("3", reason="a row was lost")
    assert project.run("orders").outcome.changed == 1
    assert same(place)
    project.watermark("orders").rewind(reason="all of it")
    assert project.run("orders").rows == 10


def test_rows_that_are_not_loaded_yet_are_explained(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    assert "has never run" in project.why("orders", id=1).sentence
    project.run("orders")
    assert project.why("orders", id=1).reason == "equal"
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 1")
    assert "since the watermark (transaction" in project.why("orders", id=11).sentence
    assert "older version" in project.why("orders", id=1).sentence
    found = plan(project)
    assert (found.rows, found.rows_are_exact, found.changes) == (2, True, "snapshot")
    assert "deleted rows and changed keys are not seen" in found.because
    assert verify(project).not_yet_loaded == 2


def test_a_lake_gets_the_rows_of_late_transactions_too(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    sync = {**ORDERS, "target": "lake:raw.orders", "batch_rows": 6}
    project, place = make_lake_project(make_place, warm_spark, sync, databases=2)
    seed(place)
    assert [load.rows for load in project.run("orders").loads] == [6, 4]
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("SAVEPOINT s")
        late.execute("UPDATE orders SET name = 'late' WHERE id = 2")
        late.execute("RELEASE SAVEPOINT s")
        place.source.execute("INSERT INTO orders VALUES (11, 'quick')")
        assert project.run("orders").rows == 1
        late.execute("COMMIT")
    assert verify(project).not_yet_loaded == 2
    assert project.run("orders").outcome.changed == 1
    found = verify(project)
    assert (found.verdict, found.target_rows, found.not_yet_loaded) == ("equal", 11, 0)
    assert project.run("orders").found_nothing
    assert plan(project).rows == 0


def test_a_repair_keeps_what_is_known_of_transactions(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id = 3")
    place.target.execute("UPDATE raw.orders SET name = 'wrong' WHERE id = 4")
    assert project.verify("orders", repair=True).repair is not None
    assert same(place)
    # Without it, all rows would be read again.
    assert project.run("orders").found_nothing
    place.source.execute("UPDATE orders SET name = 'new' WHERE id = 5")
    assert project.run("orders").rows == 1
    assert same(place)
