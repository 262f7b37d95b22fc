"""A table of a lake as the source of a sync: what main holds is what the target holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.conftest import MakePlace, WarmSpark
from integration.filled_lakes import make_shared
from integration.here import tidegate
from integration.lake_sources import COLUMNS, Lake, declare_lakes, keyed, open_lakes
from tidegate.core.batch import LoadPlan
from tidegate.core.errors import DeclarationError, SnapshotGone
from tidegate.core.identity import new_attempt_id
from tidegate.ledger.fences import Fence
from tidegate.load.engine import SyncOutcome, Transfer, run
from tidegate.load.sources.iceberg import IcebergSource
from tidegate.load.sources.iceberg_table import resolve_lake_source

__all__ = ["make_shared"]

REWRITE = ("rewrite_data_files", "options => map('rewrite-all', 'true')")
CHECKED = {"source": "lake:raw.checked"}
SYNCS = [
    keyed("batched", batch_rows=3),
    keyed("changed"),
    keyed("rewritten"),
    keyed("undone"),
    keyed("replaced", key=None, mode="replace"),
    keyed("appended", key=None, mode="append"),
    keyed("named", exclude_columns=["secret"]),
    keyed("typed"),
    keyed("copied", target="other:copy.copied"),
    keyed("planned"),
    keyed("model", batch_rows=2),
    keyed("keyless", **CHECKED, key=None, columns=["id"]),
    keyed("wrong", **CHECKED, key="idd"),
    keyed("nested", **CHECKED),
    keyed("absent", **CHECKED, columns=["note"]),
    keyed("flat", **CHECKED, key=None, exclude_columns=["tags"]),
    keyed("many", source="lake:raw.*", target="warehouse:raw.{table}", key=None),
]
PIPELINES = """
import tidegate as tg
from prices import doubled

@tg.sync(source="lake:raw.shaped", target="warehouse:raw.shaped", key="id")
def shaped(df):
    from pyspark.sql.functions import col, udf

    twice = udf(doubled, "decimal(12,2)")
    kept = df.where("status <> 'hidden'").withColumn("total", twice("total"))
    return kept.withColumn("first", col("tags")[0]).drop("tags")
"""


@pytest.fixture(scope="module")
def lakes(make_shared: MakePlace, warm_spark: WarmSpark) -> Iterator[Lake]:
    with open_lakes(make_shared, warm_spark, *SYNCS, pipelines=PIPELINES) as lake:
        (lake.place.folder / "prices.py").write_text("def doubled(x): return x * 2\n")
        yield lake


def assert_caught_up(lake: Lake) -> None:
    """The target is as the source, and there is nothing left for Spark to do."""
    assert lake.target() == lake.source()
    report = lake.run_without_spark()
    assert report.found_nothing
    assert report.watermark == str(lake.table.main)


def test_what_is_appended_arrives_in_bounded_batches_and_commands_tell_of_it(lakes: Lake) -> None:
    lake = lakes.table_of("batched")
    lake.create()
    assert lake.run_without_spark().found_nothing
    lake.insert(1, 2, 3, 4)
    plan = lake.tidegate("plan", "batched", "--json").document["plans"][0]
    assert (plan["rows"], plan["batches"], plan["watermark"]) == (4, 1, None)
    assert plan["source_snapshot"] == str(lake.table.main)
    report = lake.run()
    assert [load.rows for load in report.loads] == [4]
    assert_caught_up(lake)
    for ids in ((5, 6), (7,), (8, 9, 10, 11), (12,)):
        lake.insert(*ids)
    plan = lake.tidegate("plan", "batched", "--json").document["plans"][0]
    assert (plan["rows"], plan["batches"], plan["snapshots"]) == (8, 3, 4)
    said = lake.tidegate("plan", "batched").out
    assert f"main is at {lake.table.main}" in said
    assert f"{report.watermark} (generation 0; 4 snapshots waiting)" in said
    (status,) = [
        one
        for one in lake.tidegate("status", "--json").document["syncs"]
        if one["sync"] == "batched"
    ]
    assert (status["watermark"], status["lag"]["rows"]) == (report.watermark, 8)
    assert status["problem"] is None
    assert str(report.watermark) in lake.tidegate("watermark", "list").out
    done = lake.tidegate("watermark", "rewind", "batched", "--to-start", "--reason", "x")
    assert (done.code, "not moved by hand" in done.err) == (2, True)
    for command in (("verify",), ("why", "id=1"), ("adopt",), ("prove",)):
        done = lake.tidegate(command[0], "batched", *command[1:])
        assert (done.code, "is a lake" in done.said) == (2, True), done
    report = lake.run()
    assert [load.rows for load in report.loads] == [3, 4, 1]
    assert report.watermark == str(lake.table.main)
    assert_caught_up(lake)
    assert lake.target("count(DISTINCT id)") == [(12,)]
    assert "nothing new" in lake.tidegate("plan", "batched").out


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("merge-on-read", "changed"),
        pytest.param("copy-on-write", "rewritten", marks=pytest.mark.chaos),
    ],
)
def test_updates_and_deletes_arrive_as_one_row_for_each_key(
    lakes: Lake, mode: str, name: str
) -> None:
    lake = lakes.table_of(name)
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
    lake.call(*REWRITE)
    report = lake.run()
    # 1 and 3 and 7 as they are now, 2 gone; 8 came and went.
    assert [(load.rows, load.changed) for load in report.loads] == [(4, 4)]
    assert_caught_up(lake)
    lake.sql("DELETE FROM T")
    lake.run()
    assert lake.target() == []
    assert_caught_up(lake)


def test_what_is_no_longer_known_of_a_table_is_refused_with_the_way_back(lakes: Lake) -> None:
    lake = lakes.table_of("undone")
    lake.create()
    lake.insert(1, 2)
    lake.insert(3)
    before = lake.run().watermark
    # A compaction moves the watermark and no row.
    lake.call(*REWRITE)
    report = lake.run_without_spark()
    assert report.found_nothing
    assert report.watermark == str(lake.table.main) != before
    lake.expire()
    assert before not in map(str, lake.table.snapshots)
    lake.insert(4)
    report = lake.run()
    assert [load.rows for load in report.loads] == [1]
    assert_caught_up(lake)

    # An expired snapshot.
    lake.sql("DELETE FROM T WHERE id = 1")
    lake.insert(5)
    lake.expire()
    with pytest.raises(SnapshotGone) as caught:
        lake.run_without_spark()
    words = f"sync undone: lake:raw.undone no longer knows the snapshot {report.watermark}"
    assert words in str(caught.value)
    assert "tidegate run undone --full-refresh" in str(caught.value)
    assert lake.target("id") == [(1,), (2,), (3,), (4,)]
    first = lake.table.main
    lake.insert(6)
    report = lake.run(full_refresh=True)
    assert [load.batch.kind for load in report.loads] == ["full"]
    assert_caught_up(lake)

    # A rollback.
    lake.roll_back(first)
    for _ in range(2):
        with pytest.raises(SnapshotGone, match=f"rolled back: the snapshot {report.watermark}"):
            lake.run_without_spark()
        lake.insert(7)
    # A table made anew under its name.
    lake.sql("DROP TABLE T")
    lake.create()
    lake.insert(2, 3, status="other")
    with pytest.raises(DeclarationError, match="made anew under its name") as anew:
        lake.run_without_spark()
    assert "--full-refresh" in str(anew.value)
    lake.run(full_refresh=True)
    assert_caught_up(lake)


def test_replace_loads_the_whole_whenever_main_has_moved(lakes: Lake) -> None:
    lake = lakes.table_of("replaced")
    lake.create()
    lake.insert(1, 2, 2)
    lake.run()
    assert_caught_up(lake)
    lake.sql("DELETE FROM T WHERE id = 1")
    assert [load.rows for load in lake.run().loads] == [2]
    assert_caught_up(lake)
    lake.place.target.execute("DELETE FROM raw.replaced")
    lake.run()
    assert_caught_up(lake)


def test_append_adds_what_is_new_and_refuses_what_is_gone(lakes: Lake) -> None:
    lake = lakes.table_of("appended")
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


def test_columns_follow_their_numbers_whatever_they_are_called(lakes: Lake) -> None:
    lake = lakes.table_of("named")
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
    there = lake.place.target.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'named'"
    )
    assert ("note",) in there
    assert ("secret",) not in there


def test_text_goes_into_the_types_of_a_target_that_is_there(lakes: Lake) -> None:
    lake = lakes.table_of("typed")
    lake.place.target.execute(
        "CREATE SCHEMA IF NOT EXISTS raw",
        "CREATE TABLE raw.typed (id int PRIMARY KEY, doc jsonb, stamp timestamptz, plain"
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
    rows = lake.place.target.execute("SELECT o::text FROM raw.typed o ORDER BY id")
    assert rows == [
        (
            '(1,[1],"2026-11-01 12:00:00.123456+00","0001-01-01 00:00:00",9999-12-31,'
            r'"\\x00ff",NaN,t,9223372036854775807)',
        ),
        ("(2,,,,,,,,)",),
    ]
    lake.sql("DELETE FROM T WHERE id = 1", "UPDATE T SET doc = '[]' WHERE id = 2")
    lake.run()
    assert lake.target("id, doc::text") == [(2, "[]")]


def test_a_transformation_sees_what_is_there_and_deletes_pass_it(lakes: Lake) -> None:
    lake = lakes.table_of("shaped")
    lake.create(f"{COLUMNS}, tags array<string>")
    lake.sql(
        "INSERT INTO T VALUES (1, 'new', 1, array('a', 'b')), (2, 'hidden', 2, NULL),"
        " (3, 'new', 3, array('c'))"
    )
    lake.run()
    lake.sql(
        "DELETE FROM T WHERE id IN (2, 3)",
        "UPDATE T SET tags = array('z') WHERE id = 1",
        "INSERT INTO T VALUES (4, 'new', 4, NULL)",
    )
    assert [row[0] for row in lake.target("id, total, first")] == [1, 3]
    lake.run()
    rows = lake.session.run(
        "SELECT id, CAST(total * 2 AS decimal(12,2)), tags[0] FROM lake.raw.shaped"
        " WHERE status <> 'hidden'"
    )
    assert lake.target("id, total, first") == sorted(rows, key=repr)
    assert lake.run_without_spark().found_nothing


@pytest.mark.chaos
def test_a_lake_is_copied_into_another(lakes: Lake) -> None:
    lake = lakes.table_of("copied")
    lake.create()
    lake.insert(1, 2, 3, 4)
    lake.run()
    assert lake.copy() == lake.source()
    report = lake.run_without_spark()
    assert report.found_nothing
    assert report.watermark == str(lake.table.main)
    lake.sql("DELETE FROM T WHERE id < 3", "UPDATE T SET status = 'paid' WHERE id = 4")
    plan = lake.tidegate("plan", "copied", "--json").document["plans"][0]
    assert (plan["snapshots"], plan["target_table"]["rows_present"]) == (2, True)
    assert plan["lock"]["resource"].startswith("iceberg:")
    lake.run()
    assert lake.copy() == lake.source()
    assert lake.run_without_spark().found_nothing


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"cursor": "id"}, "snapshots order it"),
    ({"where": "id > 1"}, "where is not available there"),
    ({"source": "lake", "query": "SELECT 1"}, "a query cannot be read from"),
    ({"duplicates": "newest"}, 'duplicates = "newest" means nothing'),
    ({"mode": "append"}, "without looking at a key"),
    ({"changes": "cdc"}, "is for tables of Postgres"),
    ({}, "table raw.orders does not exist in lake lake"),
]


def test_what_a_lake_cannot_do_is_refused_before_anything_is_written(
    make_place: MakePlace,
) -> None:
    for declared, said in REFUSED:
        place = make_place(keyed("orders", **declared))
        declare_lakes(place)
        for command in ("run", "plan"):
            done = tidegate(place.folder, command, "orders")
            assert done.code == (1 if not declared and command == "run" else 2)
            assert said in done.err


def test_keys_and_columns_are_checked_against_the_table(lakes: Lake) -> None:
    lake = lakes.table_of("checked")
    lake.create("id int NOT NULL, note string, tags array<string>")
    lake.sql("INSERT INTO T VALUES (1, 'a', array('a'))")
    for name, said in (
        ("keyless", "has no identifier fields, and merge needs a key"),
        ("wrong", "did you mean id?"),
        ("nested", "column tags of raw.checked is list<string>"),
        ("absent", "key column id is left out of the columns"),
        ("many", "nor can a group have a lake as its source"),
    ):
        for command in ("run", "plan"):
            done = lake.tidegate(command, name)
            assert (done.code, said in done.err) == (2, True), done
    lake.sql("ALTER TABLE T SET IDENTIFIER FIELDS id")
    assert lake.project.run("flat").rows == 1
    assert lake.place.target.execute("SELECT id FROM raw.flat") == [(1,)]


class Died(Exception):
    """The attempt got no further."""


@dataclass(slots=True)
class Held:
    """An attempt at a job, outside of any queue."""

    fence: Fence
    stored_plan: dict[str, Any] | None
    dies: bool
    actor: str = "a test"

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self.stored_plan = plan
        if self.dies:
            raise Died

    def report(self, progress: dict[str, Any]) -> None:
        """Nobody listens."""

    def record(self, action: str, detail: dict[str, Any]) -> None:
        """Nobody asks later."""

    def remaining_seconds(self) -> float:
        return 60.0

    def check_alive(self) -> None:
        """It is."""


def attempt(
    lake: Lake, number: int, plan: dict[str, Any] | None = None, *, dies: bool = False
) -> tuple[SyncOutcome, dict[str, Any]]:
    """One attempt; what it did, and the plan that it leaves with its job."""
    context, sync = lake.project.context, lake.project.syncs[lake.name]
    destination = context.destination(sync.target)
    fence = Fence(str(destination.relation), context.control_id(), number, new_attempt_id())
    destination.raise_fence(fence)
    held = Held(fence, plan, dies)
    source = IcebergSource(context, sync, resolve_lake_source(context, sync))
    transfer = Transfer(sync, source, destination, held)
    if not dies:
        return run(transfer), held.stored_plan or {}
    with pytest.raises(Died):
        run(transfer)
    assert held.stored_plan is not None
    return transfer.outcome, held.stored_plan


def test_a_retry_loads_what_was_planned_and_then_the_rest(lakes: Lake) -> None:
    lake = lakes.table_of("planned")
    lake.create()
    lake.insert(1, 2)
    attempt(lake, 1)
    lake.insert(3)
    _, stored = attempt(lake, 2, dies=True)
    lake.sql("DELETE FROM T WHERE id = 3")
    lake.insert(4)
    outcome, _ = attempt(lake, 3, stored)
    assert outcome.loads[0].update_id == LoadPlan.from_json(stored).update_id
    assert [load.rows for load in outcome.loads] == [1, 2]
    assert lake.target() == lake.source()
    # It is in, so a retry whose answer was lost has nothing to do.
    again, _ = attempt(lake, 4, stored)
    assert again.loads == []
    # A plan whose snapshot is no longer part of main is made anew.
    loaded = lake.table.main
    lake.insert(5)
    _, stored = attempt(lake, 5, dies=True)
    lake.roll_back(loaded)
    lake.insert(6)
    outcome, _ = attempt(lake, 6, stored)
    assert [load.update_id for load in outcome.loads] != [stored["update_id"]]
    assert lake.target() == lake.source()


KEYS = st.integers(1, 6)
KINDS = ("upsert", "upsert", "delete", "clear", "compact", "copy-on-write", "run")
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), KEYS), min_size=4, max_size=9)


class Model:
    """What the table holds, kept beside it."""

    def __init__(self, lake: Lake) -> None:
        """A table of its own for each example; the target keeps the rows of the last one."""
        self.lake = lake
        self.count = 0
        lake.sql("DROP TABLE IF EXISTS T")
        lake.create()
        lake.insert(1, 2, 3, status="first")
        self.rows = dict.fromkeys((1, 2, 3), "first")
        lake.run(full_refresh=True)
        self.check()

    def do(self, operation: str, key: int) -> None:
        self.count += 1
        if operation == "upsert":
            status = f"s{self.count}"
            self.rows[key] = status
            self.lake.sql(
                f"MERGE INTO T t USING (SELECT {key} AS id, '{status}' AS status) s ON t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET status = s.status"
                " WHEN NOT MATCHED THEN INSERT (id, status) VALUES (s.id, s.status)"
            )
        elif operation in ("delete", "clear"):
            gone = [one for one in self.rows if one == key or operation == "clear"]
            for one in gone:
                del self.rows[one]
            self.lake.sql(f"DELETE FROM T WHERE {key if operation == 'delete' else 'id'} = id")
        elif operation == "compact":
            self.lake.call(*REWRITE)
        elif operation == "copy-on-write":
            names = ("delete", "update", "merge")
            given = ", ".join(f"'write.{one}.mode' = 'copy-on-write'" for one in names)
            self.lake.sql(f"ALTER TABLE T SET TBLPROPERTIES ({given})")
        else:
            self.lake.run()
            self.check()

    def check(self) -> None:
        assert dict(self.lake.target("id, status")) == self.rows
        assert len(self.lake.target("id")) == len(self.rows)
        assert self.lake.project.watermark("model").value == str(self.lake.table.main)


@pytest.mark.chaos
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(operations=OPERATIONS)
def test_whatever_is_done_to_the_table_the_target_follows(
    lakes: Lake, operations: list[tuple[str, int]]
) -> None:
    model = Model(lakes.table_of("model"))
    for operation, key in operations:
        model.do(operation, key)
    model.do("run", 0)
