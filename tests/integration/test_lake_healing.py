"""Attempts that were gone between moving main and recording it, and what is found out later."""

from __future__ import annotations

import pytest

from integration.destination_harness import PIPELINE
from integration.interleaving import Crash, crash_at
from integration.lake_harness import (
    REWRITE,
    Lake,
    LakeHarness,
    append_harness,
    lake,
    shared,
)
from tidegate.config.sync import Layout, Term
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DestinationError
from tidegate.core.watermark import CursorType
from tidegate.iceberg.table import attempt_of
from tidegate.ledger.watermarks import Watermarks
from tidegate.spark.session import SparkSessions

__all__ = ["lake", "shared"]

ROWS = [(1, "a", 1), (2, "b", 2)]
# A table that remembers no more of its past than it must.
FORGETFUL = Layout(
    properties={
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
)


def publish(harness: LakeHarness, update_id: str = "u") -> None:
    fence = harness.attempt()
    harness.destination.heal(fence)
    writes = harness.stage(fence, ROWS)
    harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"), update_id=update_id)


def crash(harness: LakeHarness, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    crash_at(monkeypatch, point)
    with pytest.raises(Crash):
        publish(harness)


def assert_healed(harness: LakeHarness) -> None:
    fence = harness.attempt()
    harness.destination.heal(fence)
    assert harness.exists("u")
    assert harness.markers() == ["u"]
    watermark = harness.watermark()
    assert (watermark.value, watermark.version, watermark.rows_synced) == ("2", 1, 2)
    assert [row for row in harness.rows() if row[1] != "external"] == ROWS
    assert harness.intents() == []


@pytest.mark.parametrize(
    ("swept", "externals", "by_pyiceberg"),
    [
        (True, 1, True),
        *(
            pytest.param(swept, externals, by_pyiceberg, marks=pytest.mark.chaos)
            for swept in (True, False)
            for externals in (0, 1, 2)
            for by_pyiceberg in (True, False)
        ),
    ],
)
def test_snapshots_that_expire_before_a_load_is_recorded_hide_it_from_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, externals: int, swept: bool, by_pyiceberg: bool
) -> None:
    harness = append_harness(lake)
    crash(harness, monkeypatch, "branch.forwarded")
    assert harness.markers() == []
    if swept:
        harness.sweep()
    harness.expire(by_pyiceberg=by_pyiceberg)
    for _ in range(externals):
        harness.insert()
    harness.expire(by_pyiceberg=by_pyiceberg)
    assert_healed(harness)


def test_where_all_else_is_forgotten_files_tell_and_otherwise_an_append_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge, which may be done twice, is done again."""
    known, append = (append_harness(lake, layout=FORGETFUL) for _ in range(2))
    merge = LakeHarness(lake, layout=FORGETFUL)
    for harness in (known, append, merge):
        crash(harness, monkeypatch, "branch.forwarded")
        harness.sweep()
        harness.insert()
        harness.insert()
        if harness is not known:
            harness.maintain(REWRITE)
        harness.expire()
    assert_healed(known)
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
    assert harness.intents() == [("u", True)]
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
    assert harness.intents() == []


def test_deletes_that_outlive_their_rows_do_not_make_a_table_look_empty(lake: Lake) -> None:
    harness = LakeHarness(lake)
    publish(harness, "first")
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "x", 3), (2, "y", 3)])
    harness.publish(fence, writes, Batch(BatchKind.RANGE, "2", "3"))
    harness.maintain(REWRITE)
    assert harness.destination.holds_rows()
    harness.destination.check_present(harness.watermark())
    assert harness.rows() == [(1, "x", 3), (2, "y", 3)]


@pytest.mark.parametrize(
    "layout",
    [
        Layout(partition_by=(Term("name"),)),
        pytest.param(Layout(), marks=pytest.mark.chaos),
    ],
    ids=["parts", "whole"],
)
def test_a_full_load_of_nothing_is_found_after_a_crash_as_any_other(
    lake: Lake, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """It empties every part, whatever Spark was told of overwriting."""
    overwrite = "spark.sql.sources.partitionOverwriteMode"
    # Where a session begins with what the user has set for all of them.
    told = warm_spark.get().sparkContext._jsc.sc().conf()
    told.set(overwrite, "dynamic")
    try:
        assert warm_spark.get().newSession().conf.get(overwrite) == "dynamic"
        harness = LakeHarness(lake, layout=layout)
        fence = harness.attempt()
        harness.publish(fence, harness.stage(fence, ROWS), Batch(BatchKind.FULL), update_id="rows")
        assert harness.rows() == ROWS
        before = harness.watermark()
        crash_at(monkeypatch, "branch.forwarded")
        with pytest.raises(Crash):
            harness.publish(harness.attempt(), (), Batch(BatchKind.FULL), update_id="nothing")
    finally:
        told.remove(overwrite)
    assert (harness.rows(), harness.markers()) == ([], ["rows"])
    assert harness.read().holds("nothing")
    harness.destination.heal(harness.attempt())
    assert sorted(harness.markers()) == ["nothing", "rows"]
    assert harness.watermark().version == before.version + 1
    assert harness.exists("nothing")
    assert harness.intents() == []
