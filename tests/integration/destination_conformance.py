"""What every destination must do: one suite, run against each of them.

A destination's tests subclass `DestinationConformance` and give a `make_harness` fixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from tidegate.errors import (
    DeclarationError,
    DestinationError,
    FenceLost,
    LoadError,
    StagingLost,
    WatermarkMoved,
)
from tidegate.ledger.fences import Fence
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.load import Published, StagedWrite
from tidegate.model.watermark import Watermark

Row = tuple[Any, ...]


class Harness(Protocol):
    """A destination table under test, with a way to stage rows into it without Spark."""

    def attempt(self) -> Fence:
        """A new attempt that has raised its fence."""

    def stage(self, fence: Fence, *parts: Sequence[Row]) -> tuple[StagedWrite, ...]:
        """Write rows aside, one writer call for each part.

        Made with deletes, each row ends with a flag: whether the row with its key is gone.
        """

    def check(self, fence: Fence, writes: Sequence[StagedWrite], *, newest: bool = False) -> None:
        """Verify what was staged."""

    def publish(
        self,
        fence: Fence,
        writes: Sequence[StagedWrite],
        batch: Batch,
        *,
        update_id: str | None = None,
        watermark: Watermark | None = None,
        newest: bool = False,
    ) -> Published:
        """Publish into the target, from the watermark that stands unless another is given."""

    def exists(self, update_id: str) -> bool: ...

    def watermark(self) -> Watermark: ...

    def discard(self, fence: Fence) -> int: ...

    def sweep(self, *live: Fence) -> int: ...

    def lose_staging(self, fence: Fence) -> None:
        """Empty what was staged, as crash recovery does."""

    def refuse_writes(self) -> None:
        """Make the target fail when rows are put into it."""

    def rows(self) -> list[Row]:
        """The target's rows in order."""

    def markers(self) -> list[str]:
        """The update_ids of the target's markers in order."""

    def staged_tables(self) -> int: ...


class MakeHarness(Protocol):
    def __call__(
        self,
        columns: str = "id integer, name text, c bigint",
        key: str = "id",
        cursor: str | None = "c",
        *,
        unique: bool = True,
        deletes: bool = False,
    ) -> Harness: ...


def load(
    harness: Harness,
    *rows: Row,
    high: int = 10,
    kind: BatchKind = BatchKind.RANGE,
    newest: bool = False,
    update_id: str | None = None,
) -> Published:
    """A whole load: stage, check, publish, discard."""
    fence = harness.attempt()
    writes = harness.stage(fence, rows)
    harness.check(fence, writes, newest=newest)
    batch = Batch(kind, None, str(high), rows=len(rows))
    published = harness.publish(fence, writes, batch, update_id=update_id, newest=newest)
    harness.discard(fence)
    return published


class RowsConformance:
    """What a load does with its rows, in every mode."""

    def test_a_load_brings_rows_marker_and_watermark_together(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        published = load(harness, (1, "a", 5), (2, "b", 7), high=7, update_id="u1")
        assert (published.rows, published.changed, published.already) == (2, 2, False)
        assert harness.rows() == [(1, "a", 5), (2, "b", 7)]
        assert harness.markers() == ["u1"]
        assert harness.exists("u1")
        watermark = harness.watermark()
        assert (watermark.value, watermark.version, watermark.rows_synced) == ("7", 1, 2)
        assert watermark.update_id == "u1"

    def test_rows_of_several_writer_calls_are_published_as_one(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "a", 1)], [(2, "b", 2), (3, "c", 3)])
        assert sorted(write.rows for write in writes) == [1, 2]
        assert len({write.write_id for write in writes}) == 2
        harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "3"))
        assert [row[0] for row in harness.rows()] == [1, 2, 3]

    def test_a_writer_call_that_did_not_win_is_not_published(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence = harness.attempt()
        harness.stage(fence, [(1, "from a task that ran twice", 1)])
        winner = harness.stage(fence, [(1, "a", 1)])
        harness.publish(fence, winner, Batch(BatchKind.RANGE, None, "3"))
        assert harness.rows() == [(1, "a", 1)]

    def test_an_empty_batch_leaves_its_marker_and_watermark(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence = harness.attempt()
        published = harness.publish(
            fence, (), Batch(BatchKind.RANGE, None, "3"), update_id="nothing"
        )
        assert published.rows == 0
        assert harness.markers() == ["nothing"]
        assert harness.watermark().value == "3"

    def test_publishing_twice_is_one_load_and_a_success(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        planned = harness.watermark()
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "a", 5)])
        batch = Batch(BatchKind.RANGE, None, "5")
        first = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        second = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        assert (first.already, second.already) == (False, True)
        assert second.rows == first.rows == 1
        assert harness.markers() == ["u"]
        assert harness.watermark().version == 1
        assert harness.watermark().rows_synced == 1

    def test_when_the_target_refuses_there_is_no_marker_and_no_move(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(harness, (1, "a", 1), high=1, update_id="u1")
        harness.refuse_writes()
        fence = harness.attempt()
        writes = harness.stage(fence, [(2, "b", 2)])
        with pytest.raises(LoadError, match="publishing into"):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, "1", "2"), update_id="u2")
        assert harness.rows() == [(1, "a", 1)]
        assert harness.markers() == ["u1"]
        assert harness.watermark().version == 1

    def test_an_empty_full_batch_empties_the_target(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        load(harness, (1, "a", 5), (2, "b", 5))
        fence = harness.attempt()
        assert harness.publish(fence, (), Batch(BatchKind.FULL, None, "10")).changed == 2
        assert harness.rows() == []


class ProtocolConformance:
    """What a load does whatever its mode: exists, fence, staging, discard, watermark."""

    def test_before_the_first_load_nothing_exists(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        assert not harness.exists("u1")
        assert harness.watermark().value is None
        assert harness.watermark().version == 0

    def test_staged_rows_are_not_in_the_target_until_published(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "a", 5)])
        harness.check(fence, writes)
        assert (harness.rows(), harness.markers()) == ([], [])
        assert harness.watermark().version == 0

    def test_staged_rows_that_vanished_are_noticed_by_check_and_by_publish(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "a", 1)], [(2, "b", 2)])
        harness.lose_staging(fence)
        with pytest.raises(StagingLost, match=r"1 rows were staged .* 0 are left"):
            harness.check(fence, writes)
        with pytest.raises(StagingLost):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"))
        assert (harness.rows(), harness.markers()) == ([], [])

    def test_staging_that_was_discarded_is_noticed_as_well(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "a", 1)])
        harness.discard(fence)
        with pytest.raises(StagingLost):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"))

    def test_a_replaced_attempt_publishes_nothing(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        zombie = harness.attempt()
        writes = harness.stage(zombie, [(1, "from the dead", 1)])
        harness.attempt()
        with pytest.raises(FenceLost):
            harness.publish(zombie, writes, Batch(BatchKind.RANGE, None, "2"))
        assert (harness.rows(), harness.markers()) == ([], [])

    def test_a_load_planned_on_an_older_watermark_publishes_nothing(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        outdated = harness.watermark()
        load(harness, (1, "a", 5), high=5, update_id="u1")
        fence = harness.attempt()
        writes = harness.stage(fence, [(2, "b", 6)])
        with pytest.raises(WatermarkMoved):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "6"), watermark=outdated)
        assert harness.rows() == [(1, "a", 5)]
        assert harness.markers() == ["u1"]

    def test_a_watermark_never_moves_down(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        load(harness, (1, "a", 50), high=50)
        fence = harness.attempt()
        writes = harness.stage(fence, [(2, "b", 6)])
        with pytest.raises(WatermarkMoved):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "6"))
        assert harness.watermark().value == "50"
        assert harness.rows() == [(1, "a", 50)]

    def test_discard_and_sweep_leave_nothing_behind(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        mine, dead = harness.attempt(), harness.attempt()
        harness.stage(mine, [(1, "a", 1)], [(2, "a", 1)])
        harness.stage(dead, [(3, "a", 1)])
        assert harness.discard(mine) == 2
        assert harness.sweep(dead) == 0
        assert harness.sweep() == 1
        assert harness.staged_tables() == 0


class DestinationConformance(RowsConformance, ProtocolConformance):
    """The contract of every mode: exists, stage, check, publish, discard, watermark."""


class MergeConformance(DestinationConformance):
    """What merge adds: one row per key, the newest wins, unchanged rows are left alone."""

    def test_a_row_that_changed_replaces_the_old_one(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        load(harness, (1, "a", 1), (2, "b", 1))
        published = load(harness, (1, "changed", 2), (3, "new", 2))
        assert published.changed == 2
        assert harness.rows() == [(1, "changed", 2), (2, "b", 1), (3, "new", 2)]

    def test_rows_that_did_not_change_are_not_counted_as_changed(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        rows = ((1, "a", 1), (2, None, 1), (3, "c", 1))
        load(harness, *rows)
        published = load(harness, *rows[:2], (3, "c!", 2))
        assert (published.rows, published.changed) == (3, 1)

    def test_an_older_row_that_comes_late_does_not_replace_a_newer(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(harness, (1, "newer", 8))
        published = load(harness, (1, "older", 3))
        assert published.changed == 0
        assert harness.rows() == [(1, "newer", 8)]

    def test_of_two_rows_with_the_same_cursor_the_last_loaded_stays(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(harness, (1, "first", 8))
        load(harness, (1, "second", 8))
        assert harness.rows() == [(1, "second", 8)]

    def test_a_row_without_a_cursor_replaces_and_is_replaced(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(harness, (1, "a", 5), (2, "b", None))
        load(harness, (1, "without", None), (2, "with", 1))
        assert harness.rows() == [(1, "without", None), (2, "with", 1)]

    def test_a_key_of_several_columns_is_compared_whole(self, make_harness: MakeHarness) -> None:
        harness = make_harness("shop text, id integer, name text, c bigint", "shop, id")
        load(harness, ("x", 1, "a", 1), ("x", 2, "b", 1), ("y", 1, "c", 1))
        load(harness, ("x", 1, "changed", 2), ("y", 2, "new", 2))
        assert harness.rows() == [
            ("x", 1, "changed", 2),
            ("x", 2, "b", 1),
            ("y", 1, "c", 1),
            ("y", 2, "new", 2),
        ]

    def test_a_table_that_is_all_key_takes_each_row_once(self, make_harness: MakeHarness) -> None:
        harness = make_harness("id integer, c bigint", "id, c")
        load(harness, (1, 1), (1, 2))
        assert load(harness, (1, 1), (1, 3)).changed == 1
        assert harness.rows() == [(1, 1), (1, 2), (1, 3)]

    def test_without_a_cursor_in_the_rows_the_last_load_wins(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness("id integer, name text", "id", None)
        load(harness, (1, "a"))
        load(harness, (1, "b"))
        assert harness.rows() == [(1, "b")]

    def test_a_key_twice_in_one_batch_is_refused_by_name(self, make_harness: MakeHarness) -> None:
        harness = make_harness(unique=False)
        fence = harness.attempt()
        writes = harness.stage(fence, [(7, "a", 1), (8, "b", 1)], [(7, "c", 2)])
        with pytest.raises(DeclarationError, match=r"\(id\).* not unique: one occurs 2 times"):
            harness.check(fence, writes)

    @pytest.mark.parametrize("first", [(), ((7, "old", 0), (9, "z", 0))])
    def test_of_duplicates_the_newest_row_is_kept_when_asked_for(
        self, make_harness: MakeHarness, first: tuple[Row, ...]
    ) -> None:
        harness = make_harness(unique=False)
        if first:
            load(harness, *first, high=0, newest=True)
        load(
            harness, (7, "a", 1), (7, "c", 3), (7, "b", 2), (7, "null", None), (8, "x", 1),
            newest=True,
        )  # fmt: skip
        expected = [(7, "c", 3), (8, "x", 1)]
        assert harness.rows() == expected + ([(9, "z", 0)] if first else [])

    def test_duplicates_with_one_cursor_are_decided_alike_every_time(
        self, make_harness: MakeHarness
    ) -> None:
        rows = [(7, "a", 1), (7, "b", 1), (7, "c", 1)]
        found = []
        for order in (rows, rows[::-1], [rows[1], rows[2], rows[0]]):
            harness = make_harness(unique=False)
            load(harness, *order, newest=True)
            found.append(harness.rows())
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 1

    def test_a_row_without_its_key_is_refused(self, make_harness: MakeHarness) -> None:
        harness = make_harness(unique=False)
        fence = harness.attempt()
        writes = harness.stage(fence, [(None, "a", 1), (2, "b", 1)])
        with pytest.raises(DestinationError, match=r"1 rows .* have no value in their key \(id\)"):
            harness.check(fence, writes, newest=True)

    def test_a_full_batch_removes_what_it_does_not_hold_and_takes_older_rows(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(harness, (1, "a", 5), (2, "gone", 5), (3, "c", 5))
        published = load(
            harness, (1, "restored", 2), (3, "c", 5), (4, "new", 1), kind=BatchKind.FULL
        )
        assert published.changed == 3
        assert harness.rows() == [(1, "restored", 2), (3, "c", 5), (4, "new", 1)]
