"""What every destination must do: one suite, run against each of them.

A destination's tests subclass these classes and give a `make_harness` fixture.
"""

from __future__ import annotations

import pytest

from integration.destination_harness import MakeHarness, Row, load
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import (
    DeclarationError,
    DestinationError,
    FenceLost,
    LoadError,
    StagingLost,
    WatermarkMoved,
)

__all__ = ["MakeHarness", "Row", "load"]

TWICE = r"\(id\).* not unique: one occurs 2 times"
KEYLESS = r"1 rows .* have no value in their key \(id\)"


class RowsConformance:
    """What a load does with its rows, in every mode."""

    def test_publishing_twice_brings_rows_marker_and_watermark_together_once(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        planned, fence = harness.watermark(), harness.attempt()
        assert (planned.value, planned.version, harness.exists("u")) == (None, 0, False)
        harness.stage(fence, [(1, "from a task that ran twice", 5)])
        writes = harness.stage(fence, [(1, "a", 5)], [(2, "b", 6), (3, "c", 7)])
        assert sorted(write.rows for write in writes) == [1, 2]
        assert len({write.write_id for write in writes}) == 2
        harness.check(fence, writes)
        assert (harness.rows(), harness.markers()) == ([], []), "staged is not yet published"
        batch = Batch(BatchKind.RANGE, None, "7")
        first = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        assert (first.rows, first.changed, first.already) == (3, 3, False)
        second = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        assert (second.rows, second.already) == (3, True)
        assert harness.rows() == [(1, "a", 5), (2, "b", 6), (3, "c", 7)]
        assert (harness.markers(), harness.exists("u")) == (["u"], True)
        watermark = harness.watermark()
        assert (watermark.value, watermark.version, watermark.rows_synced) == ("7", 1, 3)
        assert watermark.update_id == "u"

    def test_empty_batches_count_and_refused_ones_leave_no_marker_and_no_move(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        nothing = Batch(BatchKind.RANGE, None, "3")
        assert harness.publish(harness.attempt(), (), nothing, update_id="u1").rows == 0
        assert (harness.markers(), harness.watermark().value) == (["u1"], "3")
        load(harness, (1, "a", 5), (2, "b", 5), update_id="u2")
        emptied = Batch(BatchKind.FULL, None, "10")
        assert harness.publish(harness.attempt(), (), emptied, update_id="u3").changed == 2
        assert harness.rows() == []
        harness.refuse_writes()
        fence = harness.attempt()
        writes = harness.stage(fence, [(2, "b", 12)])
        with pytest.raises(LoadError, match="publishing into"):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, "10", "12"), update_id="u4")
        assert (harness.rows(), harness.markers()) == ([], ["u1", "u2", "u3"])
        assert (harness.watermark().value, harness.watermark().version) == ("10", 3)


class ProtocolConformance:
    """What a load does whatever its mode: fence, staging, discard, watermark."""

    def test_staged_rows_that_vanished_are_noticed_by_check_and_by_publish(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        fence, batch = harness.attempt(), Batch(BatchKind.RANGE, None, "2")
        writes = harness.stage(fence, [(1, "a", 1)], [(2, "b", 2)])
        harness.lose_staging()
        with pytest.raises(StagingLost, match=r"1 rows were staged .* 0 are left"):
            harness.check(fence, writes)
        with pytest.raises(StagingLost):
            harness.publish(fence, writes, batch)
        writes = harness.stage(fence, [(1, "a", 1)])
        harness.discard(fence)
        with pytest.raises(StagingLost):
            harness.publish(fence, writes, batch)
        assert (harness.rows(), harness.markers()) == ([], [])

    def test_a_replaced_attempt_publishes_nothing(self, make_harness: MakeHarness) -> None:
        harness = make_harness()
        zombie = harness.attempt()
        writes = harness.stage(zombie, [(1, "from the dead", 1)])
        harness.attempt()
        with pytest.raises(FenceLost):
            harness.publish(zombie, writes, Batch(BatchKind.RANGE, None, "2"))
        assert (harness.rows(), harness.markers()) == ([], [])

    def test_a_load_planned_on_an_older_watermark_or_below_it_publishes_nothing(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        outdated = harness.watermark()
        load(harness, (1, "a", 5), high=5, update_id="u1")
        for watermark, high in ((outdated, "6"), (harness.watermark(), "4")):
            fence = harness.attempt()
            writes = harness.stage(fence, [(2, "b", 6)])
            with pytest.raises(WatermarkMoved):
                harness.publish(
                    fence, writes, Batch(BatchKind.RANGE, None, high), watermark=watermark
                )
        assert (harness.rows(), harness.markers()) == ([(1, "a", 5)], ["u1"])
        assert harness.watermark().value == "5"

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

    def test_rows_replace_others_unless_they_are_older_and_a_full_batch_is_all(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness()
        load(
            harness,
            *((1, "same", 1), (2, None, 1), (3, "newer", 8), (4, "first", 8)),
            *((5, "with", 5), (6, "without", None)),
        )
        published = load(
            harness,
            *((1, "same", 1), (2, None, 1), (3, "older", 3), (4, "second", 8)),
            *((5, "without", None), (6, "with", 1), (7, "new", 2)),
        )
        assert (published.rows, published.changed) == (7, 4)
        stay = [(2, None, 1), (3, "newer", 8), (4, "second", 8), (5, "without", None)]
        assert harness.rows() == [(1, "same", 1), *stay, (6, "with", 1), (7, "new", 2)]
        assert load(harness, (1, "changed", 9), (8, "new", 9)).changed == 2, "all are newer"
        assert harness.rows()[:5] == [(1, "changed", 9), *stay]
        full = [(1, "restored", 2), (3, "newer", 8), (9, "new", 1)]
        assert load(harness, *full, kind=BatchKind.FULL).changed == 2 + 6
        assert harness.rows() == full

    def test_a_key_of_several_columns_is_compared_whole_without_a_cursor_too(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness("shop text, id integer, name text", "shop, id", None)
        load(harness, ("x", 1, "a"), ("x", 2, "b"), ("y", 1, "c"))
        load(harness, ("x", 1, "changed"), ("y", 2, "new"))
        stay = [("x", 2, "b"), ("y", 1, "c")]
        assert harness.rows() == [("x", 1, "changed"), *stay, ("y", 2, "new")]

    def test_a_table_that_is_all_key_takes_each_row_once(self, make_harness: MakeHarness) -> None:
        harness = make_harness("id integer, c bigint", "id, c")
        load(harness, (1, 1), (1, 2))
        assert load(harness, (1, 1), (1, 3)).changed == 1
        assert harness.rows() == [(1, 1), (1, 2), (1, 3)]

    def test_a_key_twice_is_refused_or_its_newest_row_is_kept(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness(unique=False)
        fence = harness.attempt()
        writes = harness.stage(fence, [(7, "a", 1), (8, "b", 1)], [(7, "c", 2)])
        with pytest.raises(DeclarationError, match=TWICE):
            harness.check(fence, writes)
        writes = harness.stage(fence, [(None, "a", 1), (2, "b", 1)])
        with pytest.raises(DestinationError, match=KEYLESS):
            harness.check(fence, writes, newest=True)
        load(
            harness,
            *((7, "a", 1), (7, "c", 3), (7, "b", 2), (7, "null", None), (8, "x", 1)),
            newest=True,
        )
        assert harness.rows() == [(7, "c", 3), (8, "x", 1)]
        # Of one cursor, the same row is kept in whatever order they come.
        tied = [(key, name, 1) for key, names in enumerate(("abc", "cba", "bca")) for name in names]
        load(harness, *tied, (7, "d", 4), (7, "e", 5), (8, "older", 0), newest=True)
        *same, seven, eight = harness.rows()
        assert [row[0] for row in same] == [0, 1, 2]
        assert len({row[1] for row in same}) == 1
        assert (seven, eight) == ((7, "e", 5), (8, "x", 1))


class DeletesConformance:
    """What a batch that carries deletes does to a target with a key."""

    def test_one_batch_brings_new_rows_changes_and_deletes(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        gone = load(harness, (7, "never here", 5, True), update_id="u0", high=1)
        assert (gone.rows, gone.changed, harness.exists("u0")) == (1, 0, True)
        assert harness.watermark().rows_synced == 0
        load(
            harness,
            *((1, "a", 8, False), (2, "b", 8, None), (3, "c", None, False), (4, "d", 1, False)),
        )
        # A delete counts whatever its cursor and that of the row which is there.
        planned, fence = harness.watermark(), harness.attempt()
        writes = harness.stage(
            fence,
            [(1, None, 3, True), (2, None, None, True), (3, "c", 9, True)],
            [(4, "changed", 2, False), (5, "new", 2, None), (9, None, 1, True)],
        )
        harness.check(fence, writes)
        batch = Batch(BatchKind.RANGE, None, "20")
        first = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        assert (first.rows, first.changed, first.already) == (6, 5, False)
        assert harness.publish(fence, writes, batch, update_id="u", watermark=planned).already
        assert harness.rows() == [(4, "changed", 2), (5, "new", 2)]
        with pytest.raises(DeclarationError, match=r"carry deletes, and a full batch"):
            load(harness, (4, "changed", 2, True), kind=BatchKind.FULL)
        # A target that deletes have emptied has no rows on record, and what was deleted may return.
        load(harness, (4, None, None, True), (5, None, None, True), high=21)
        assert (harness.rows(), harness.watermark().rows_synced) == ([], 0)
        load(harness, (1, "again", 3, False), high=22, update_id="again")
        assert (harness.rows(), harness.watermark().rows_synced) == ([(1, "again", 3)], 1)
        harness.refuse_writes()
        with pytest.raises(LoadError, match="publishing into"):
            load(harness, (1, None, None, True), (2, "b", 2, False), high=23)
        assert (harness.rows(), harness.markers()[-1]) == ([(1, "again", 3)], "again")

    def test_a_key_twice_or_missing_in_a_batch_with_deletes_is_refused_by_name(
        self, make_harness: MakeHarness
    ) -> None:
        """Not even an index of the source tells that a key is deleted and there once at most."""
        harness = make_harness(deletes=True)
        fence = harness.attempt()
        for row in ((7, "a", 2, False), (7, None, None, True)):
            writes = harness.stage(fence, [(7, "a", 1, True), (8, "b", 1, False)], [row])
            with pytest.raises(DeclarationError, match=TWICE):
                harness.check(fence, writes)
        writes = harness.stage(fence, [(None, "a", 1, True), (2, "b", 1, False)])
        with pytest.raises(DestinationError, match=KEYLESS):
            harness.check(fence, writes)

    def test_of_a_key_twice_the_newest_is_kept_be_it_a_delete_or_not(
        self, make_harness: MakeHarness
    ) -> None:
        def changes(above: int) -> list[Row]:
            found = (
                *((1, "a", 5, False), (1, None, 6, True)),
                *((2, "b", 6, False), (2, None, 5, True)),
                *((3, "c", 6, False), (3, None, None, True)),
                *((4, "d", 5, False), (4, "d", 5, True)),
                *((5, "null", None, False), (5, "e", 1, False)),
            )
            return [(key + above, *rest) for key, *rest in found]

        harness = make_harness(deletes=True)
        load(harness, *changes(0), *((key, "old", 0, False) for key in range(11, 16)), newest=True)
        assert harness.rows()[:2] == [(2, "b", 6), (5, "e", 1)]
        load(harness, *changes(10), newest=True)
        kept = [(2, "b", 6), (5, "e", 1)]
        assert harness.rows() == [*kept, *((key + 10, *rest) for key, *rest in kept)]

    def test_keys_of_several_columns_and_tables_that_are_all_key_lose_rows_too(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness("shop text, id integer, name text", "shop, id", None, deletes=True)
        load(harness, ("x", 1, "a", False), ("x", 2, "b", False), ("y", 1, "c", False))
        load(harness, ("x", 1, None, True), ("y", 2, None, True), ("y", 1, "c!", False))
        assert harness.rows() == [("x", 2, "b"), ("y", 1, "c!")]
        harness = make_harness("id integer, c bigint", "id, c", deletes=True)
        load(harness, (1, 1, False), (1, 2, False))
        assert load(harness, (1, 1, True), (1, 2, False), (1, 3, False)).changed >= 2
        assert harness.rows() == [(1, 2), (1, 3)]
