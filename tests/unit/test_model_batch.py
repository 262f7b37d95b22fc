"""Batches and watermarks: where a slice ends, and what publishing it leaves behind."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batch import Batch, BatchKind, LoadPlan, cut
from tidegate.core.watermark import Watermark

texts = st.text(max_size=12)
keys = st.lists(texts, min_size=1, max_size=3).map(tuple)
batches = st.builds(
    Batch,
    kind=st.sampled_from(BatchKind),
    low=st.none() | texts,
    high=st.none() | texts,
    key_low=st.none() | keys,
    key_high=st.none() | keys,
    closes_tie=st.booleans(),
    rows=st.integers(0, 10**9),
)
ties = st.builds(
    Batch,
    kind=st.just(BatchKind.TIE),
    low=st.none() | texts,
    high=texts,
    key_low=st.none() | keys,
    key_high=keys,
)
watermarks = st.builds(
    Watermark,
    pipeline=st.just("shop.orders"),
    table=st.just("raw.orders"),
    value=st.none() | texts,
    generation=st.integers(0, 9),
    version=st.integers(0, 10**6),
    rows_synced=st.integers(0, 10**9),
    position=st.none() | keys,
)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(1, 12))
def test_a_cut_slice_takes_whole_cursor_values_and_at_most_the_limit(
    values: list[int], limit: int
) -> None:
    seen = sorted(values)[: limit + 1]
    last = seen[-1]
    below = [value for value in seen if value < last]
    end = cut(len(seen), limit, str(last), str(below[-1]) if below else None)

    taken = [value for value in values if value <= int(end.high or 0)]
    if end.is_tie:
        assert set(seen) == {last}
        assert len(taken) > limit
    else:
        assert 1 <= len(taken) <= limit


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(1, 12))
def test_cuts_one_after_the_other_cover_every_row_once(values: list[int], limit: int) -> None:
    rest, covered = sorted(values), []
    while rest:
        seen = rest[: limit + 1]
        below = [value for value in seen if value < seen[-1]]
        end = cut(len(seen), limit, str(seen[-1]), str(below[-1]) if below else None)
        covered += [value for value in rest if value <= int(end.high or 0)]
        rest = [value for value in rest if value > int(end.high or 0)]
    assert covered == sorted(values)


@given(batches)
def test_a_batch_comes_back_from_json_as_it_was(batch: Batch) -> None:
    assert Batch.from_json(json.loads(json.dumps(batch.to_json()))) == batch


@given(batches, st.integers(0, 99), st.integers(0, 99))
def test_a_plan_comes_back_from_json_as_it_was(batch: Batch, generation: int, version: int) -> None:
    plan = LoadPlan("shop.orders-1", batch, generation, version)
    assert LoadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(batches, st.integers(0, 10**9))
def test_the_row_count_is_no_part_of_a_batch_s_identity(batch: Batch, rows: int) -> None:
    assert replace(batch, rows=rows).identity == batch.identity


@given(batches)
def test_every_batch_can_be_told_in_words(batch: Batch) -> None:
    assert str(batch)


@given(watermarks, ties, st.integers(0, 1000))
def test_publishing_moves_version_and_rows_by_exactly_its_own(
    watermark: Watermark, batch: Batch, rows: int
) -> None:
    after = watermark.after(batch, rows, "u")
    assert after.version == watermark.version + 1
    assert after.rows_synced == watermark.rows_synced + rows
    assert after.update_id == "u"
    assert (after.pipeline, after.table) == (watermark.pipeline, watermark.table)
    assert after.generation == watermark.generation


@given(watermarks, ties)
def test_an_open_tie_keeps_the_value_and_notes_the_position(
    watermark: Watermark, tie: Batch
) -> None:
    after = watermark.after(tie, 1, "u")
    assert after.value == watermark.value
    assert after.position == (tie.high, *(tie.key_high or ()))


@given(watermarks, ties)
def test_a_closed_tie_moves_the_value_and_clears_the_position(
    watermark: Watermark, tie: Batch
) -> None:
    after = watermark.after(replace(tie, key_high=None, closes_tie=True), 1, "u")
    assert (after.value, after.position) == (tie.high, None)


@given(watermarks, st.sampled_from([BatchKind.LOOKBACK, BatchKind.NULLS]), texts)
def test_late_rows_and_rows_without_a_cursor_move_neither_value_nor_position(
    watermark: Watermark, kind: BatchKind, high: str
) -> None:
    after = watermark.after(Batch(kind, None, high), 1, "u")
    assert (after.value, after.position) == (watermark.value, watermark.position)


@given(watermarks, st.sampled_from([BatchKind.RANGE, BatchKind.FULL]), st.none() | texts)
def test_a_range_never_loses_the_value(
    watermark: Watermark, kind: BatchKind, high: str | None
) -> None:
    after = watermark.after(Batch(kind, None, high), 1, "u")
    assert after.value == (watermark.value if high is None else high)
    assert after.position is None
