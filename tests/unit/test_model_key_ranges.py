"""Ranges of keys: every differing one is in just one pass, and cuts stay within their limit."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batch import Batch, BatchKind, Late, Lateness, remember
from tidegate.verify.backfill import BackfillRange
from tidegate.verify.compare import KeyRange, KeyRanges, differing

SUMS = st.dictionaries(
    st.integers(0, 63), st.tuples(st.integers(1, 9), st.integers(-5, 5)), max_size=40
)


@given(SUMS, SUMS, st.integers(1, 30))
def test_passes_hold_every_differing_range_once_and_few_rows(
    left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]], most: int
) -> None:
    ranges = KeyRanges(6, tuple(differing(left, right)))
    assert set(ranges.values) == {
        value for value in range(64) if left.get(value) != right.get(value)
    }
    passes = list(ranges.passes(most))
    assert [one for part in passes for one in part.ranges] == list(ranges.ranges)
    assert all(part.rows <= most or len(part.ranges) == 1 for part in passes)
    assert all(passes)


@given(st.integers(1, 1000), st.integers(1, 5000))
def test_a_finer_cut_has_no_more_groups_than_allowed(count: int, most: int) -> None:
    ranges = KeyRanges(10, tuple(KeyRange(value, 1) for value in range(count)))
    bits = ranges.finer_bits(most, 40)
    assert 10 <= bits <= 40
    assert bits == 10 or count << (bits - 10) <= most


def test_two_sets_of_ranges_are_told_apart_by_their_text() -> None:
    one, other = (KeyRanges(8, (KeyRange(value, 1),)) for value in (1, 2))
    assert str(one) != str(other)
    assert str(one).startswith("1 of 256 key ranges")


def test_batches_of_other_kinds_keep_their_identity() -> None:
    batch = Batch(BatchKind.RANGE, "1", "2")
    assert batch.identity == ("range", "1", "2", None, None, False)
    repair = Batch(BatchKind.REPAIR, part="a")
    assert repair.identity != Batch(BatchKind.REPAIR, part="b").identity
    assert Batch.from_json(repair.to_json()) == repair


def test_chunks_of_a_backfill_meet_and_their_ids_follow_from_the_command() -> None:
    wanted = BackfillRange("0", "25", "10", ("0", "10", "20"))
    assert [(one.low, one.high) for one in wanted.chunks] == [
        ("0", "10"),
        ("10", "20"),
        ("20", "25"),
    ]

    def ids(one: BackfillRange, turn: int) -> list[str]:
        where = {"pipeline": "p.s", "source": "s", "target": "t"}
        return [
            one.update_id(chunk, **where, generation=1, turn=turn)  # type: ignore[arg-type]
            for chunk in one.chunks
        ]

    assert ids(wanted, 1) == ids(BackfillRange("0", "25", "10", ("0", "10", "20")), 1)
    other = ids(BackfillRange("0", "26", "10", ("0", "10", "20")), 1)
    assert len({*ids(wanted, 1), *ids(wanted, 2), *other}) == 9


def test_lateness_of_the_last_loads_is_kept_and_summed_up() -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    assert remember(None, {"key": ["id"]}, None, at) == {"key": ["id"]}
    kept = remember(None, {"key": ["id"]}, Late(1, 60.0, 60.0), at)
    kept = remember(kept, {"key": ["id"]}, None, at)
    kept = remember(kept, {"key": ["id"]}, Late(9, 5.0, 300.0), at)
    found = Lateness.recorded(kept, in_seconds=True)
    assert found == Lateness(10, 2, 5.0, 300.0, at, True)
    for _ in range(30):
        kept = remember(kept, {"key": ["id"]}, Late(1, 1.0, 1.0), at)
    last = Lateness.recorded(kept, in_seconds=True)
    assert last is not None
    assert (last.loads, last.farthest) == (20, 1.0)
