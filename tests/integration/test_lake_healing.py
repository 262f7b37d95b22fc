"""Attempts that were gone between moving main and recording it, and what is found out later."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.conftest import Database
from integration.destination_harness import PIPELINE
from integration.interleaving import Crash, crash_at
from integration.lake_harness import Lake, LakeHarness, lake_shape, make_lake
from tidegate.errors import DestinationError
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import CursorType
from tidegate.model.lake import attempt_of
from tidegate.model.layout import Layout, Term
from tidegate.model.rules import Mode, Rules
from tidegate.spark.session import SparkSessions

ROWS = [(1, "a", 1), (2, "b", 2)]
# A table that remembers no more of its past than it must.
FORGETFUL = {
    "write.metadata.previous-versions-max": "1",
    "write.metadata.delete-after-commit.enabled": "true",
}


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def append_harness(lake: Lake, **properties: str) -> LakeHarness:
    shape = lake_shape(key="", unique=False)
    layout = Layout(properties=properties)
    return LakeHarness(lake, shape, Rules(mode=Mode.APPEND), layout=layout)


def publish(harness: LakeHarness, update_id: str = "u", *, low: str | None = None) -> None:
    fence = harness.attempt()
    harness.destination.heal(fence)
    writes = harness.stage(fence, ROWS)
    harness.publish(fence, writes, Batch(BatchKind.RANGE, low, "2"), update_id=update_id)


def crash(harness: LakeHarness, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    crash_at(monkeypatch, point)
    with pytest.raises(Crash):
        publish(harness)


def maintain(harness: LakeHarness, *statements: str) -> None:
    """Somebody else's work on the table."""
    relation = harness.destination.relation
    with harness.session() as session:
        for text in statements:
            session.run(
                text.format(
                    table=harness.lake.catalog.quoted(relation),
                    system="`lake`.system",
                    name=f"'raw.{relation.name}'",
                )
            )


EXPIRE = (
    "CALL {system}.expire_snapshots(table => {name},"
    " older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
)
INSERT = "INSERT INTO {table} VALUES (9, 'external', 0)"
REWRITE = "CALL {system}.rewrite_data_files(table => {name}, options => map('rewrite-all', 'true'))"


def assert_healed(harness: LakeHarness) -> None:
    fence = harness.attempt()
    harness.destination.heal(fence)
    assert harness.exists("u")
    assert harness.markers() == ["u"]
    watermark = harness.watermark()
    assert (watermark.value, watermark.version, watermark.rows_synced) == ("2", 1, 2)
    assert [row for row in harness.rows() if row[1] != "external"] == ROWS
    assert harness.lake.database.execute(f"SELECT FROM {harness.lake.schema}.intents") == []


@pytest.mark.parametrize("externals", [0, 1, 2])
@pytest.mark.parametrize("swept", [True, False])
def test_snapshots_that_expire_before_a_load_is_recorded_hide_it_from_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, externals: int, swept: bool
) -> None:
    harness = append_harness(lake)
    crash(harness, monkeypatch, "branch.forwarded")
    assert harness.markers() == []
    if swept:
        harness.sweep()
    maintain(harness, EXPIRE, *[INSERT] * externals, EXPIRE)
    assert_healed(harness)


def test_a_load_is_known_by_its_files_where_all_else_is_forgotten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = append_harness(lake, **FORGETFUL)
    crash(harness, monkeypatch, "branch.forwarded")
    harness.sweep()
    maintain(harness, INSERT, INSERT, EXPIRE)
    assert_healed(harness)


def test_where_nobody_can_tell_an_append_is_refused_and_a_merge_is_done_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = append_harness(lake, **FORGETFUL)
    merge = LakeHarness(lake, layout=Layout(properties=FORGETFUL))
    for harness in (append, merge):
        crash(harness, monkeypatch, "branch.forwarded")
        harness.sweep()
        maintain(harness, INSERT, INSERT, REWRITE, EXPIRE)
    for _ in range(2):
        with pytest.raises(DestinationError, match="cannot be told") as raised:
            append.destination.heal(append.attempt())
        assert f"tidegate marker forget lake:{append.table} u" in str(raised.value)
    publish(merge)
    assert [row for row in merge.rows() if row[1] != "external"] == ROWS
    assert (merge.markers(), merge.watermark().version) == (["u"], 1)


def test_an_intent_that_never_reached_main_is_given_up_and_its_branch_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = append_harness(lake)
    crash(harness, monkeypatch, "intent.noted")
    assert [ref for ref in harness.read().refs if attempt_of(ref)] != []
    harness.destination.heal(harness.attempt())
    assert [ref for ref in harness.read().refs if attempt_of(ref)] == []
    states = lake.database.execute(f"SELECT update_id, abandoned FROM {lake.schema}.intents")
    assert states == [("u", True)]
    assert not harness.exists("u")
    assert (harness.rows(), harness.markers(), harness.watermark().version) == ([], [], 0)
    publish(harness)
    assert_healed(harness)


def test_a_load_found_after_a_rewind_is_recorded_and_moves_no_watermark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LakeHarness(lake)
    publish(harness, "before")
    crash_at(monkeypatch, "branch.forwarded")
    fence = harness.attempt()
    writes = harness.stage(fence, [(3, "c", 3)])
    with pytest.raises(Crash):
        harness.publish(fence, writes, Batch(BatchKind.RANGE, "2", "3"), update_id="u")
    with harness.destination.open() as connection, connection.transaction():
        watermarks = Watermarks(harness.destination.ledger)
        now = watermarks.get(connection, PIPELINE, harness.table)
        watermarks.reset(
            connection, now, "1", cursor_type=CursorType.BIGINT, new_generation=True,
            moved_by="a person", reason="loads it again",
        )  # fmt: skip
    rewound = harness.watermark()
    harness.destination.heal(harness.attempt())
    assert harness.markers() == ["before", "u"]
    assert harness.watermark() == rewound
    assert (rewound.value, rewound.generation) == ("1", 1)
    assert lake.database.execute(f"SELECT FROM {lake.schema}.intents") == []


def test_deletes_that_outlive_their_rows_do_not_make_a_table_look_empty(lake: Lake) -> None:
    harness = LakeHarness(lake)
    publish(harness, "first")
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "x", 3), (2, "y", 3)])
    harness.publish(fence, writes, Batch(BatchKind.RANGE, "2", "3"))
    maintain(harness, REWRITE)
    assert harness.destination.holds_rows()
    harness.destination.check_present(harness.watermark())
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "z", 4)])
    harness.publish(fence, writes, Batch(BatchKind.RANGE, "3", "4"))
    assert harness.rows() == [(1, "z", 4), (2, "y", 3)]


@pytest.mark.parametrize(
    "layout", [Layout(), Layout(partition_by=(Term("name"),))], ids=["whole", "parts"]
)
def test_a_full_load_of_nothing_is_found_after_a_crash_as_any_other(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    harness = LakeHarness(lake, layout=layout)
    fence = harness.attempt()
    harness.publish(fence, harness.stage(fence, ROWS), Batch(BatchKind.FULL), update_id="rows")
    before = harness.watermark()
    crash_at(monkeypatch, "branch.forwarded")
    with pytest.raises(Crash):
        harness.publish(harness.attempt(), (), Batch(BatchKind.FULL), update_id="nothing")
    assert (harness.rows(), harness.markers()) == ([], ["rows"])
    assert harness.read().holds("nothing")
    harness.destination.heal(harness.attempt())
    assert sorted(harness.markers()) == ["nothing", "rows"]
    assert harness.watermark().version == before.version + 1
    assert harness.exists("nothing")
    assert lake.database.execute(f"SELECT FROM {lake.schema}.intents") == []


def test_a_full_load_of_nothing_empties_every_part_whatever_spark_was_told(
    lake: Lake, warm_spark: SparkSessions
) -> None:
    overwrite = "spark.sql.sources.partitionOverwriteMode"
    # Where a session begins with what the user has set for all of them.
    shared = warm_spark.get().sparkContext._jsc.sc().conf()
    shared.set(overwrite, "dynamic")
    try:
        assert warm_spark.get().newSession().conf.get(overwrite) == "dynamic"
        harness = LakeHarness(lake, layout=Layout(partition_by=(Term("name"),)))
        fence = harness.attempt()
        harness.publish(fence, harness.stage(fence, ROWS), Batch(BatchKind.FULL))
        assert harness.rows() == ROWS
        harness.publish(harness.attempt(), (), Batch(BatchKind.FULL))
        assert harness.rows() == []
    finally:
        shared.remove(overwrite)
