"""changes = "snapshot": rows are found by the transaction that wrote them, however late it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.cdc_places import make_cdc
from integration.conftest import Make, MakePlace, MakeProject, Place
from integration.lakes import make_lake_project
from integration.queued import run_here
from tidegate.core.batch import BatchKind
from tidegate.core.errors import DeclarationError
from tidegate.load.plan import SyncPlan
from tidegate.load.planner import plan_project
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.verify.report import Verification
from tidegate.verify.verify import verify_sync

__all__ = ["make_cdc"]

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "changes": "snapshot"}


def seed(place: Place, rows: int = 10) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        f"INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, {rows}) i",
    )


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def plan(project: Project) -> SyncPlan:
    found = plan_project(project.context, [project.syncs["orders"]])
    assert not found.refusals, found.refusals
    return found.plans[0]


def same(place: Place, source: str = "orders", target: str = "raw.orders") -> bool:
    """Whether both tables hold the same rows, printed."""
    text = "SELECT t::text FROM {} t ORDER BY 1"
    return place.source.execute(text.format(source)) == place.target.execute(text.format(target))


def say(place: Place, *arguments: str) -> str:
    done = run_here(place, *arguments)
    assert done.code == 0, done
    return " ".join(done.out.split())


def test_rows_of_a_transaction_that_was_open_come_with_the_run_after_it_ended(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
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
        assert project.run("orders").rows == 1
        assert project.run("orders").found_nothing
        late.execute("COMMIT")
        assert project.run("orders").outcome.changed == 4
        assert same(place)

        # What is loaded beside an open transaction is not loaded again and again.
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (301, 'never')")
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


def test_an_application_clock_makes_a_cursor_miss_a_row_that_snapshot_and_cdc_find(
    make_cdc: Make,
) -> None:
    by_cursor = {"name": "by_cursor", **ORDERS, "target": "warehouse:raw.by_cursor"}
    by_cursor |= {"changes": "cursor", "cursor": "updated_at"}
    by_log = {"name": "by_log", **ORDERS, "target": "warehouse:raw.by_log", "changes": "cdc"}
    project, place = make_cdc(ORDERS, by_cursor, by_log)
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
    make: Make,
) -> None:
    project, place = make({**ORDERS, "batch_rows": 10}, databases=2)
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
    make: Make,
) -> None:
    project, place = make({**ORDERS, "batch_rows": 4, "partitions": 3}, databases=2)
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

    # A large change comes in key ranges as well.
    place.source.execute("UPDATE orders SET name = 'again' WHERE id <= 9")
    report = project.run("orders")
    assert [load.rows for load in report.loads] == [4, 4, 1]
    assert {load.batch.kind for load in report.loads} == {BatchKind.WRITTEN}
    assert same(place)


def test_a_cursor_and_a_lookback_bound_how_far_back_rows_are_looked_for(make: Make) -> None:
    windowed = {**ORDERS, "cursor": "updated_at", "lookback": "10 days"}
    project, place = make(windowed, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, updated_at timestamptz)",
        "CREATE INDEX ON orders (updated_at)",
        "INSERT INTO orders SELECT i, 'n' || i, now() - i * interval '1 day'"
        " FROM generate_series(0, 9) i",
        "INSERT INTO orders SELECT i, 'old', now() - interval '30 days'"
        " FROM generate_series(100, 5000) i",
        "ANALYZE orders",
    )
    project.run("orders")

    # The index is used, and the plan says what the lookback bounds.
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 0")
    found = plan(project)
    assert "bounded by the lookback" in found.because
    assert found.cursor is not None
    (statement,) = found.statements
    explained = "\n".join(one for (one,) in place.source.execute(f"EXPLAIN {statement}"))
    assert "orders_updated_at_idx" in explained
    assert "Seq Scan" not in explained
    said = say(place, "plan", "orders")
    assert "cursor updated_at, timestamp with time zone, indexed; bounds how far back" in said
    assert "guarantee bounded: rows are found by the transaction that wrote them, bounded" in said
    assert "lies more than 10 days below the highest that was loaded (20" in said

    # A row whose stamp goes back replaces the newer looking one.
    place.source.execute("UPDATE orders SET updated_at = now() - interval '3 days' WHERE id < 10")
    assert project.run("orders").outcome.changed == 10
    assert same(place)
    assert json.loads(say(place, "status", "--json"))["syncs"][0]["lag"]["rows"] == 0

    place.source.execute(
        "INSERT INTO orders VALUES (11, 'within', now() - interval '9 days')",
        "INSERT INTO orders VALUES (12, 'further back', now() - interval '20 days')",
        "INSERT INTO orders VALUES (13, 'not stamped', NULL)",
        "INSERT INTO orders VALUES (14, 'from the future', now() + interval '1 year')",
    )
    assert project.run("orders").rows == 3
    place.source.execute("INSERT INTO orders VALUES (15, 'within', now() - interval '9 days')")
    assert project.run("orders").rows == 1, "the row from the future hides no other"
    loaded = place.target.execute("SELECT id FROM raw.orders WHERE id BETWEEN 10 AND 99 ORDER BY 1")
    assert loaded == [(11,), (13,), (14,), (15,)]
    assert verify(project).difference is not None, "a row that was passed over shows"
    assert "further back than the lookback" in project.why("orders", id=12).sentence


def test_other_modes_absorb_rows_that_come_twice_and_some_rows_and_columns_are_read(
    make: Make,
) -> None:
    others: dict[str, dict[str, Any]] = {
        "replaced": {"mode": "delete_insert"},
        "appended": {"mode": "append", "key": ["id"]},
        "some": {"where": "name <> 'n3'", "exclude_columns": ["secret"]},
    }
    syncs = [
        {**ORDERS, "name": name, "target": f"warehouse:raw.{name}", **values}
        for name, values in others.items()
    ]
    project, place = make(*syncs, databases=2)
    seed(place)
    place.source.execute("ALTER TABLE orders ADD secret text")

    def run_all() -> None:
        for name in others:
            project.run(name)

    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("UPDATE orders SET name = 'late' WHERE id = 1")
        run_all()
        late.execute("COMMIT")
    place.source.execute("INSERT INTO orders VALUES (11, 'n3'), (12, 'n4')")
    run_all()
    run_all()
    for name in ("replaced", "appended"):
        assert same(place, target=f"raw.{name}"), name
    assert place.target.value("SELECT count(*) FROM raw.replaced") == 12
    assert place.target.value("SELECT count(*) FROM raw.appended_raw") == 13
    assert same(place, "(SELECT id, name FROM orders WHERE name <> 'n3')", "raw.some")


@pytest.mark.chaos
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
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (11, 'late')")
        project.run("orders")
        late.execute("COMMIT")
    assert project.run("orders").outcome.changed == 1
    assert same(place, "(SELECT id, upper(name) FROM orders)")
    place.source.execute("INSERT INTO orders VALUES (12, 'waits')")
    assert verify(project).difference is None


def test_a_table_that_comes_with_old_rows_is_loaded_whole(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high (id int PRIMARY KEY, name text)",
        "INSERT INTO high SELECT i, 'old' FROM generate_series(100, 109) i",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
        "CREATE TABLE made_before (LIKE orders INCLUDING ALL)",
        "INSERT INTO made_before SELECT i, 'b' FROM generate_series(1, 200) i",
    )
    project.run("orders")
    place.source.execute("ALTER TABLE orders ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")
    assert verify(project).not_yet_loaded == 10
    assert project.run("orders").rows == 10
    assert same(place)
    assert project.run("orders").found_nothing

    # The only partition that is left goes and comes back.
    place.source.execute("DROP TABLE high", "ALTER TABLE orders DETACH PARTITION low")
    project.run("orders", full_refresh=True, allow_removal=True)
    place.source.execute("ALTER TABLE orders ATTACH PARTITION low FOR VALUES FROM (0) TO (100)")
    project.run("orders")
    assert same(place)

    # A table that was made before takes the name of another.
    place.source.execute(
        "ALTER TABLE orders RENAME TO old_orders", "ALTER TABLE made_before RENAME TO orders"
    )
    project.run("orders")
    assert same(place)


def test_rows_are_explained_repaired_and_read_again(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    seed(place)
    assert "has never run" in project.why("orders", id=1).sentence
    project.run("orders")
    assert project.why("orders", id=1).reason == "equal"

    # not loaded yet
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    place.source.execute("UPDATE orders SET name = 'x' WHERE id = 1")
    assert "since the watermark (transaction" in project.why("orders", id=11).sentence
    assert "older version" in project.why("orders", id=1).sentence
    found = plan(project)
    assert (found.rows, found.rows_are_exact, found.changes) == (2, True, "snapshot")
    assert "deleted rows and changed keys are not seen" in found.because
    assert verify(project).not_yet_loaded == 2
    project.run("orders")

    # removed by somebody, and read again
    at = project.watermark("orders")
    assert at.get().cursor_type == "xid8"
    place.target.execute("DELETE FROM raw.orders WHERE id = 3")
    assert "somebody removed it" in project.why("orders", id=3).sentence
    at.rewind("3", reason="a row was lost")
    assert project.run("orders").outcome.changed == 1
    assert same(place)
    at.rewind(reason="all of it")
    assert project.run("orders").rows == 11

    # deleted, which a repair sees; what is known of transactions is kept
    place.source.execute("DELETE FROM orders WHERE id = 3")
    assert project.run("orders").found_nothing
    assert "does not see deleted rows" in project.why("orders", id=3).sentence
    place.target.execute("UPDATE raw.orders SET name = 'wrong' WHERE id = 4")
    assert project.verify("orders", repair=True).repair is not None
    assert same(place)
    assert project.run("orders").found_nothing
    place.source.execute("UPDATE orders SET name = 'new' WHERE id = 5")
    assert project.run("orders").rows == 1

    # and so does a full refresh, which goes on from its snapshot
    place.source.execute("DELETE FROM orders WHERE id = 2")
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (12, 'late')")
        report = project.run("orders", full_refresh=True)
        assert report.loads[0].batch.kind is BatchKind.FULL
        late.execute("COMMIT")
    project.run("orders")
    assert same(place)


def test_the_commands_speak_of_transactions_and_groups_may_be_read_so(make: Make) -> None:
    group = {"name": "all", "source": "shop:public.*", "target": "warehouse:raw.all_{table}"}
    project, place = make(ORDERS, {**group, "changes": "snapshot"}, databases=2)
    seed(place)
    before = say(place, "plan", "orders")
    assert "cursor none: rows are found by the transaction that wrote them" in before
    assert "watermark at the start" in before
    assert "10 rows in 1 batch; next: all rows, 10 rows" in before
    assert "guarantee exact: rows are found by the transaction" in before
    assert "horizon" not in before
    project.run("orders")
    at = project.watermark("orders").value
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    after = say(place, "plan", "orders")
    assert f"watermark transaction {at} (generation 0)" in after
    assert f"next: written since {at}, 1 rows" in after
    assert str(at) in say(place, "status")
    assert "cursor type: xid8" in say(place, "watermark", "show", "orders")
    found = json.loads(say(place, "plan", "orders", "--json"))
    assert found["plans"][0]["changes"] == "snapshot"
    assert "equal" in say(place, "verify", "orders")

    place.source.execute("CREATE TABLE items (id int PRIMARY KEY)", "CREATE TABLE bare (a int)")
    place.source.execute("INSERT INTO items VALUES (1)", "INSERT INTO bare VALUES (1), (1)")
    for table in ("items", "bare"):
        project.run(f"all.{table}")
    assert project.watermark("all.items").get().cursor_type == "xid8"
    assert place.target.value("SELECT count(*) FROM raw.all_bare") == 2
    said = say(place, "plan", "all.bare")
    assert "no key, so the whole table is loaded whenever anything changed" in said


def test_a_lake_gets_the_rows_of_late_transactions_too(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    by_xid = {"source": "shop:public.orders", "target": "lake:raw.by_xid", "cursor": "xid"}
    project, place = make_lake_project(
        make_place,
        warm_spark,
        {**ORDERS, "target": "lake:raw.orders"},
        {**by_xid, "name": "by_xid"},
        {**by_xid, "name": "newest", "target": "lake:raw.newest", "duplicates": "newest"},
        databases=2,
    )
    seed(place)
    place.source.execute("ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()")
    # As text this one is higher than every later id.
    place.source.execute("UPDATE orders SET xid = '99' WHERE id = 2")
    assert project.run("by_xid").rows == 10
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("SAVEPOINT s")
        late.execute("UPDATE orders SET name = 'late', xid = pg_current_xact_id() WHERE id = 2")
        late.execute("RELEASE SAVEPOINT s")
        place.source.execute("INSERT INTO orders VALUES (11, 'quick')")
        assert project.run("orders").rows == 11
        late.execute("COMMIT")
    assert verify(project).not_yet_loaded == 2
    assert project.run("orders").outcome.changed == 1
    assert project.run("by_xid").outcome.changed == 2
    for name in ("orders", "by_xid"):
        found = verify_sync(project.context, project.sync(name))
        assert (found.verdict, found.target_rows, found.not_yet_loaded) == ("equal", 11, 0), name
    assert project.run("orders").found_nothing
    assert plan(project).rows == 0
    with pytest.raises(DeclarationError, match="is text in a lake"):
        project.run("newest")
