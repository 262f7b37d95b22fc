"""What every destination must do with a batch that carries deletes.

A destination's tests subclass `DeletesConformance` and give a `make_harness` fixture.
"""

from __future__ import annotations

import pytest

from integration.destination_conformance import MakeHarness, Row, load
from tidegate.errors import DeclarationError, DestinationError, LoadError
from tidegate.model.batch import Batch, BatchKind


class DeletesConformance:
    """What a batch that carries deletes does to a target with a key."""

    def test_a_deleted_row_leaves_the_target_and_counts_as_a_change(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False))
        published = load(harness, (2, "b", 1, True))
        assert (published.rows, published.changed) == (1, 1)
        assert harness.rows() == [(1, "a", 1), (3, "c", 1)]

    def test_one_batch_brings_new_rows_changes_and_deletes(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False))
        fence = harness.attempt()
        writes = harness.stage(
            fence,
            [(1, "changed", 2, False), (2, None, None, True)],
            [(3, None, None, True), (4, "new", 2, False)],
        )
        harness.check(fence, writes)
        published = harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "20"))
        assert (published.rows, published.changed) == (4, 4)
        assert harness.rows() == [(1, "changed", 2), (4, "new", 2)]

    def test_a_flag_that_is_null_is_no_delete(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, None))
        load(harness, (1, "b", 2, None), (2, "c", 2, None))
        assert harness.rows() == [(1, "b", 2), (2, "c", 2)]

    @pytest.mark.parametrize("first", [(), ((1, "a", 1, False),)])
    def test_the_delete_of_a_row_that_is_not_there_changes_nothing(
        self, make_harness: MakeHarness, first: tuple[Row, ...]
    ) -> None:
        harness = make_harness(deletes=True)
        load(harness, *first)
        published = load(harness, (7, "never here", 5, True), update_id="u")
        assert (published.rows, published.changed) == (1, 0)
        assert harness.rows() == [row[:3] for row in first]
        assert harness.exists("u")

    @pytest.mark.parametrize("cursor", [3, 9, None])
    def test_a_delete_counts_whatever_the_cursor_of_the_row_that_is_there(
        self, make_harness: MakeHarness, cursor: int | None
    ) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "newer", 8, False), (2, "null", None, False), (3, "stays", 1, False))
        assert load(harness, (1, None, cursor, True), (2, None, cursor, True)).changed == 2
        assert harness.rows() == [(3, "stays", 1)]

    def test_a_row_that_was_deleted_may_come_again(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 8, False), (2, "b", 8, False))
        load(harness, (1, None, None, True))
        load(harness, (1, "again", 3, False))
        assert harness.rows() == [(1, "again", 3), (2, "b", 8)]

    def test_a_deleted_key_of_several_columns_is_compared_whole(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness(
            "shop text, id integer, name text, c bigint", "shop, id", deletes=True
        )
        load(harness, *(("x", 1, "a", 1, False), ("x", 2, "b", 1, False), ("y", 1, "c", 1, False)))
        load(harness, ("x", 1, None, None, True), ("y", 2, None, None, True))
        assert harness.rows() == [("x", 2, "b", 1), ("y", 1, "c", 1)]

    def test_a_table_that_is_all_key_loses_rows_too(self, make_harness: MakeHarness) -> None:
        harness = make_harness("id integer, c bigint", "id, c", deletes=True)
        load(harness, (1, 1, False), (1, 2, False))
        assert load(harness, (1, 1, True), (1, 2, False), (1, 3, False)).changed >= 2
        assert harness.rows() == [(1, 2), (1, 3)]

    def test_a_target_without_a_cursor_loses_rows_too(self, make_harness: MakeHarness) -> None:
        harness = make_harness("id integer, name text", "id", None, deletes=True)
        load(harness, (1, "a", False), (2, "b", False))
        load(harness, (1, "a", True), (2, "b!", False))
        assert harness.rows() == [(2, "b!")]

    def test_when_the_target_refuses_a_row_nothing_is_deleted(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, False), update_id="u1")
        harness.refuse_writes()
        with pytest.raises(LoadError, match="publishing into"):
            load(harness, (1, None, None, True), (2, "b", 2, False), update_id="u2")
        assert harness.rows() == [(1, "a", 1)]
        assert harness.markers() == ["u1"]

    def test_deletes_that_are_published_twice_are_one_load(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, False), (2, "b", 1, False))
        planned, fence = harness.watermark(), harness.attempt()
        writes = harness.stage(fence, [(1, None, None, True)])
        batch = Batch(BatchKind.RANGE, None, "20")
        first = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        second = harness.publish(fence, writes, batch, update_id="u", watermark=planned)
        assert (first.already, second.already) == (False, True)
        assert harness.rows() == [(2, "b", 1)]

    @pytest.mark.parametrize("unique", [True, False])
    @pytest.mark.parametrize("second", [(7, "a", 2, False), (7, None, None, True)])
    def test_a_key_twice_in_a_batch_with_deletes_is_refused_by_name(
        self, make_harness: MakeHarness, unique: bool, second: Row
    ) -> None:
        """Not even an index of the source tells that a key is deleted and there once at most."""
        harness = make_harness(unique=unique, deletes=True)
        fence = harness.attempt()
        writes = harness.stage(fence, [(7, "a", 1, True), (8, "b", 1, False)], [second])
        with pytest.raises(DeclarationError, match=r"\(id\).* not unique: one occurs 2 times"):
            harness.check(fence, writes)

    @pytest.mark.parametrize("unique", [True, False])
    @pytest.mark.parametrize("first", [(), tuple((key, "old", 0, False) for key in range(1, 6))])
    def test_of_a_key_twice_the_newest_is_kept_when_asked_for_be_it_a_delete_or_not(
        self, make_harness: MakeHarness, first: tuple[Row, ...], unique: bool
    ) -> None:
        harness = make_harness(unique=unique, deletes=True)
        load(harness, *first, high=0, newest=True)
        load(
            harness,
            *((1, "a", 5, False), (1, None, 6, True)),
            *((2, "b", 6, False), (2, None, 5, True)),
            *((3, "c", 6, False), (3, None, None, True)),
            *((4, "d", 5, False), (4, "d", 5, True)),
            *((5, "null", None, False), (5, "e", 1, False)),
            newest=True,
        )
        assert harness.rows() == [(2, "b", 6), (5, "e", 1)]

    def test_a_delete_without_its_key_is_refused(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        fence = harness.attempt()
        writes = harness.stage(fence, [(None, "a", 1, True), (2, "b", 1, False)])
        with pytest.raises(DestinationError, match=r"1 rows .* have no value in their key \(id\)"):
            harness.check(fence, writes)

    def test_a_full_batch_with_deletes_is_refused(self, make_harness: MakeHarness) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, "a", 1, False))
        with pytest.raises(DeclarationError, match=r"carry deletes, and a full batch"):
            load(harness, (1, "a", 1, True), kind=BatchKind.FULL)
        assert harness.rows() == [(1, "a", 1)]
        assert len(harness.markers()) == 1

    def test_a_target_that_deletes_have_emptied_has_no_rows_on_record(
        self, make_harness: MakeHarness
    ) -> None:
        harness = make_harness(deletes=True)
        load(harness, (1, None, None, True))
        assert harness.watermark().rows_synced == 0
        load(harness, (1, "a", 1, False), (2, "b", 1, False))
        assert harness.watermark().rows_synced == 2
        load(harness, (1, "a", 1, True))
        assert harness.watermark().rows_synced == 3
        load(harness, (2, "b", 1, True))
        assert (harness.rows(), harness.watermark().rows_synced) == ([], 0)
        load(harness, (3, "c", 1, False))
        assert harness.watermark().rows_synced == 1
