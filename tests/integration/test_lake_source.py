"""A table of a lake as the source of a sync: what main holds is what the target holds."""

from __future__ import annotations

import pytest

from integration.commands import tidegate
from integration.conftest import MakePlace
from integration.lake_sources import COLUMNS, COPIED, KEYED, Lake, declare_lakes, open_lake
from tidegate.errors import DeclarationError, SnapshotGone
from tidegate.spark.session import SparkSessions


def assert_caught_up(lake: Lake) -> None:
    """The target is as the source, and there is nothing left for Spark to do."""
    assert lake.target() == lake.source()
    report = lake.run_without_spark()
    assert report.found_nothing
    assert report.watermark == str(lake.table.main)


def test_what_is_appended_arrives_in_bounded_batches(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark, {**KEYED, "batch_rows": 3}) as lake:
        lake.create()
        assert lake.run_without_spark().found_nothing
        lake.insert(1, 2, 3, 4)
        assert [load.rows for load in lake.run().loads] == [4]
        assert_caught_up(lake)
        for ids in ((5, 6), (7,), (8, 9, 10, 11), (12,)):
            lake.insert(*ids)
        report = lake.run()
        assert [load.rows for load in report.loads] == [3, 4, 1]
        assert report.watermark == str(lake.table.main)
        assert_caught_up(lake)
        assert lake.target("count(DISTINCT id)") == [(12,)]


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_updates_and_deletes_arrive_as_one_row_for_each_key(
    make_place: MakePlace, warm_spark: SparkSessions, mode: str
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create(mode=mode)
        lake.insert(1, 2, 3, 4, 5, 6)
        lake.run()
        lake.sql(
            "UPDATE T SET status = 'paid' WHERE id = 1",
            "UPDATE T SET status = 'sent' WHERE id = 1",
            "DELETE FROM T WHERE id IN (2, 3)",
            "INSERT INTO T VALUES (3, 'back', NULL), (7, 'new', 7), (8, 'new', 8)",
            "DELETE FROM T WHERE id = 8",
        )
        lake.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        report = lake.run()
        # 1 and 3 and 7 as they are now, 2 gone; 8 came and went.
        assert [(load.rows, load.changed) for load in report.loads] == [(4, 4)]
        assert_caught_up(lake)
        lake.sql("DELETE FROM T")
        lake.run()
        assert lake.target() == []
        assert_caught_up(lake)
        lake.insert(9)
        lake.run()
        assert_caught_up(lake)


def test_a_compaction_moves_the_watermark_and_no_row(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        lake.insert(3)
        before = lake.run().watermark
        lake.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        report = lake.run_without_spark()
        assert report.found_nothing
        assert report.watermark == str(lake.table.main) != before
        lake.call("expire_snapshots", "older_than => now(), retain_last => 1")
        assert before not in map(str, lake.table.snapshots)
        lake.insert(4)
        assert [load.rows for load in lake.run().loads] == [1]
        assert_caught_up(lake)


def test_an_expired_snapshot_is_refused_with_the_way_back(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        loaded = lake.run().watermark
        lake.sql("DELETE FROM T WHERE id = 1")
        lake.insert(3)
        lake.call("expire_snapshots", "older_than => now(), retain_last => 1")
        with pytest.raises(SnapshotGone) as caught:
            lake.run_without_spark()
        assert f"sync orders: lake:raw.orders no longer knows the snapshot {loaded}" in str(
            caught.value
        )
        assert "tidegate run orders --full-refresh" in str(caught.value)
        assert lake.target("id") == [(1,), (2,)]
        assert [load.batch.kind for load in lake.run(full_refresh=True).loads] == ["full"]
        assert_caught_up(lake)


def test_a_rollback_is_refused_with_the_way_back(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1)
        first = lake.table.main
        lake.insert(2)
        loaded = lake.run().watermark
        lake.call("rollback_to_snapshot", f"snapshot_id => {first}")
        for added in (3, 4):
            with pytest.raises(SnapshotGone, match=f"rolled back: the snapshot {loaded}"):
                lake.run_without_spark()
            lake.insert(added)
        lake.run(full_refresh=True)
        assert_caught_up(lake)


def test_a_table_made_anew_under_its_name_is_refused_with_the_way_out(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.create()
        lake.insert(1, 2)
        lake.run()
        lake.sql("DROP TABLE T")
        lake.create()
        lake.insert(2, 3, status="other")
        with pytest.raises(DeclarationError, match="made anew under its name") as caught:
            lake.run_without_spark()
        assert "--full-refresh" in str(caught.value)
        lake.run(full_refresh=True)
        assert_caught_up(lake)


def test_replace_loads_the_whole_whenever_main_has_moved(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    declared = {"source": KEYED["source"], "target": KEYED["target"], "mode": "replace"}
    with open_lake(make_place, warm_spark, declared) as lake:
        lake.create()
        lake.insert(1, 2, 2)
        lake.run()
        assert_caught_up(lake)
        lake.sql("DELETE FROM T WHERE id = 1")
        assert [load.rows for load in lake.run().loads] == [2]
        assert_caught_up(lake)
        lake.place.target.execute("DELETE FROM raw.orders")
        lake.run()
        assert_caught_up(lake)


def test_append_adds_what_is_new_and_refuses_what_is_gone(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    declared = {"source": KEYED["source"], "target": KEYED["target"], "mode": "append"}
    with open_lake(make_place, warm_spark, declared) as lake:
        lake.create()
        lake.insert(1, 1)
        lake.run()
        lake.insert(1, 2)
        lake.run()
        assert_caught_up(lake)
        lake.sql("UPDATE T SET status = 'paid' WHERE id = 2")
        with pytest.raises(DeclarationError, match=f"snapshot {lake.table.main}"):
            lake.run_without_spark()
        lake.run(full_refresh=True)
        assert_caught_up(lake)


def test_delete_insert_takes_what_is_gone_along(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark, {**KEYED, "mode": "delete_insert"}) as lake:
        lake.create()
        lake.insert(1, 2, 3)
        lake.run()
        lake.sql("UPDATE T SET status = 'paid' WHERE id = 2", "DELETE FROM T WHERE id = 3")
        assert [load.rows for load in lake.run().loads] == [2]
        assert_caught_up(lake)


def test_columns_follow_their_numbers_whatever_they_are_called(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    declared = {**KEYED, "exclude_columns": ["secret"]}
    with open_lake(make_place, warm_spark, declared) as lake:
        lake.create(f"{COLUMNS}, old string, secret string")
        lake.sql("INSERT INTO T VALUES (1, 'new', 1, 'a', 'x'), (2, 'new', 2, 'b', 'x')")
        lake.sql(
            "ALTER TABLE T RENAME COLUMN old TO note",
            "ALTER TABLE T ADD COLUMN added int",
            "ALTER TABLE T ALTER COLUMN id TYPE bigint",
        )
        columns = "id, status, total, note, added"
        lake.run()
        assert lake.target(columns) == lake.source(columns)
        lake.sql(
            "UPDATE T SET note = 'c', added = 7 WHERE id = 1",
            "ALTER TABLE T RENAME COLUMN added TO counted",
            "DELETE FROM T WHERE id = 2",
            "INSERT INTO T VALUES (3, 'new', 3, 'd', 'x', 8)",
        )
        lake.run()
        assert lake.target("id, note, counted") == lake.source("id, note, counted")
        assert (
            lake.place.target.execute(
                "SELECT FROM information_schema.columns"
                " WHERE table_name = 'orders' AND column_name = 'secret'"
            )
            == []
        )


def test_text_goes_into_the_types_of_a_target_that_is_there(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark) as lake:
        lake.place.target.execute(
            "CREATE SCHEMA raw",
            "CREATE TABLE raw.orders (id int PRIMARY KEY, doc jsonb, stamp timestamptz, plain"
            " timestamp, day date, bytes bytea, ratio float8, yes boolean, big bigint)",
        )
        lake.create(
            "id int, doc string, stamp timestamp, plain timestamp_ntz, day date, bytes binary,"
            " ratio double, yes boolean, big bigint"
        )
        lake.sql(
            "INSERT INTO T VALUES (1, '[1]', TIMESTAMP '2026-11-01 12:00:00.123456 UTC',"
            " TIMESTAMP_NTZ '0001-01-01 00:00:00', DATE '9999-12-31', X'00FF', double('NaN'), true,"
            " 9223372036854775807), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
        )
        lake.run()
        rows = lake.place.target.execute("SELECT o::text FROM raw.orders o ORDER BY id")
        assert rows == [
            (
                '(1,[1],"2026-11-01 12:00:00.123456+00","0001-01-01 00:00:00",9999-12-31,'
                r'"\\x00ff",NaN,t,9223372036854775807)',
            ),
            ("(2,,,,,,,,)",),
        ]
        lake.sql("DELETE FROM T WHERE id = 1", "UPDATE T SET doc = '[]' WHERE id = 2")
        lake.run()
        assert lake.place.target.execute("SELECT id, doc::text FROM raw.orders") == [(2, "[]")]


TRANSFORMED = """
import tidegate as tg
from prices import doubled

@tg.sync(source="lake:raw.orders", target="warehouse:raw.orders", key="id")
def orders(df):
    from pyspark.sql.functions import col, udf

    twice = udf(doubled, "decimal(12,2)")
    kept = df.where("status <> 'hidden'").withColumn("total", twice("total"))
    return kept.withColumn("first", col("tags")[0]).drop("tags")
"""


def test_a_transformation_sees_what_is_there_and_deletes_pass_it(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark, pipelines=TRANSFORMED) as lake:
        (lake.place.folder / "prices.py").write_text("def doubled(x): return x * 2\n")
        lake.create(f"{COLUMNS}, tags array<string>")
        lake.sql(
            "INSERT INTO T VALUES (1, 'new', 1, array('a', 'b')), (2, 'hidden', 2, NULL),"
            " (3, 'new', 3, array('c'))"
        )
        lake.run()
        expected = "id, CAST(total * 2 AS decimal(12,2)), tags[0]"
        visible = "lake.raw.orders WHERE status <> 'hidden'"
        for _ in range(2):
            rows = lake.session.run(f"SELECT {expected} FROM {visible}")
            assert lake.target("id, total, first") == sorted(rows, key=repr)
            lake.sql(
                "DELETE FROM T WHERE id IN (2, 3)",
                "UPDATE T SET tags = array('z') WHERE id = 1",
                "INSERT INTO T VALUES (4, 'new', 4, NULL)",
            )
            lake.run()
        assert lake.run_without_spark().found_nothing


def test_a_lake_is_copied_into_another(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    with open_lake(make_place, warm_spark, COPIED) as lake:
        lake.create()
        lake.insert(1, 2, 3)
        lake.run()
        assert lake.copy() == lake.source()
        lake.insert(4, 5)
        assert [load.rows for load in lake.run().loads] == [2]
        assert lake.copy() == lake.source()
        report = lake.run_without_spark()
        assert report.found_nothing
        assert report.watermark == str(lake.table.main)
        lake.sql("DELETE FROM T WHERE id < 3", "UPDATE T SET status = 'paid' WHERE id = 4")
        plan = tidegate(lake.place.folder, "plan", "orders", "--json").document["plans"][0]
        assert (plan["snapshots"], plan["target_table"]["rows_present"]) == (2, True)
        assert plan["lock"]["resource"].startswith("iceberg:")
        status = tidegate(lake.place.folder, "status", "--json").document["syncs"][0]
        assert (status["problem"], status["unreachable"]) == (None, [])
        lake.run()
        assert lake.copy() == lake.source()
        assert lake.run_without_spark().found_nothing


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"cursor": "id"}, "snapshots order it"),
        ({"where": "id > 1"}, "where is not available there"),
        ({"source": "lake", "query": "SELECT 1"}, "a query cannot be read from"),
        ({"duplicates": "newest"}, 'duplicates = "newest" means nothing'),
        ({"mode": "append"}, "without looking at a key"),
        ({"changes": "cdc"}, "is for tables of Postgres"),
        ({}, "table raw.orders does not exist in lake lake"),
    ],
)
def test_what_a_lake_cannot_do_is_refused_before_anything_is_written(
    make_place: MakePlace, declared: dict[str, str], said: str
) -> None:
    place = make_place({**KEYED, **declared})
    declare_lakes(place)
    for command in ("run", "plan"):
        done = tidegate(place.folder, command, "orders")
        assert done.code == (1 if not declared and command == "run" else 2)
        assert said in done.err


def test_keys_and_columns_are_checked_against_the_table(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    plain = {"source": KEYED["source"], "target": KEYED["target"]}
    syncs = [
        {**plain, "name": "keyless", "columns": ["id"], "target": "warehouse:raw.a"},
        {**plain, "name": "wrong", "key": "idd", "target": "warehouse:raw.b"},
        {**plain, "name": "nested", "key": "id", "target": "warehouse:raw.c"},
        {**plain, "name": "absent", "key": "id", "columns": ["note"], "target": "warehouse:raw.d"},
        {**plain, "name": "flat", "exclude_columns": ["tags"], "target": "warehouse:raw.e"},
        {**plain, "name": "many", "source": "lake:raw.*", "target": "warehouse:raw.{table}"},
    ]
    with open_lake(make_place, warm_spark, *syncs) as lake:
        lake.create("id int NOT NULL, note string, tags array<string>")
        lake.sql("INSERT INTO T VALUES (1, 'a', array('a'))")
        for name, said in (
            ("keyless", "has no identifier fields, and merge needs a key"),
            ("wrong", "did you mean id?"),
            ("nested", "column tags of raw.orders is list<string>"),
            ("absent", "key column id is left out of the columns"),
            ("many", "nor can a group have a lake as its source"),
        ):
            for command in ("run", "plan"):
                done = tidegate(lake.place.folder, command, name)
                assert (done.code, said in done.err) == (2, True), done
        lake.sql("ALTER TABLE T SET IDENTIFIER FIELDS id")
        assert lake.project.run("flat").rows == 1
        assert lake.place.target.execute("SELECT id FROM raw.e") == [(1,)]


def test_commands_tell_how_a_sync_from_a_lake_stands(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    with open_lake(make_place, warm_spark, {**KEYED, "batch_rows": 2}) as lake:
        folder = lake.place.folder
        lake.create()
        lake.insert(1, 2)
        plan = tidegate(folder, "plan", "orders", "--json").document["plans"][0]
        assert (plan["rows"], plan["batches"], plan["watermark"]) == (2, 1, None)
        assert plan["source_snapshot"] == str(lake.table.main)
        loaded = lake.run().watermark
        assert loaded is not None
        lake.insert(3, 4)
        lake.insert(5)
        plan = tidegate(folder, "plan", "orders", "--json").document["plans"][0]
        assert (plan["rows"], plan["batches"], plan["snapshots"]) == (3, 2, 2)
        said = tidegate(folder, "plan", "orders").out
        assert f"main is at {lake.table.main}" in said
        assert f"{loaded} (generation 0; 2 snapshots waiting)" in said
        status = tidegate(folder, "status", "--json").document["syncs"][0]
        assert (status["watermark"], status["lag"]["rows"]) == (loaded, 3)
        assert status["problem"] is None
        assert loaded in tidegate(folder, "watermark", "list").out
        done = tidegate(folder, "watermark", "rewind", "orders", "--to-start", "--reason", "x")
        assert (done.code, "not moved by hand" in done.err) == (2, True)
        for command in (("verify",), ("why", "id=1"), ("adopt",), ("prove",)):
            done = tidegate(folder, command[0], "orders", *command[1:])
            assert (done.code, "is a lake" in done.said) == (2, True), done
        lake.run()
        assert "nothing new" in tidegate(folder, "plan", "orders").out
