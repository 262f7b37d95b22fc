"""Watermarks and batches: cursor types, log positions, transaction ids, remembered columns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batch import Batch, BatchKind, LoadPlan, cut
from tidegate.core.shape import LoadedShape, Shape, StagedColumn, record_columns
from tidegate.core.watermark import CursorType, Watermark, lsn_text, lsn_value
from tidegate.load.sources.xmin import (
    EPOCH,
    SourcePosition,
    is_since,
    loaded_position,
    position_after,
    widen,
)
from tidegate.postgres.types import needs_text, postgres_type, spark_type

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


@given(st.sampled_from(CursorType), st.none() | st.integers(0, 6))
def test_a_cursor_type_is_known_with_and_without_precision(
    kind: CursorType, precision: int | None
) -> None:
    text = kind.value
    if precision is not None and "timestamp" in text:
        text = text.replace("timestamp", f"timestamp({precision})", 1)
    assert CursorType.of(text) is kind


@pytest.mark.parametrize(
    "name", ["numeric", "numeric(10,0)", "text", '"date"', "date[]", "time", "interval", "", "DATE"]
)
def test_other_types_are_no_cursor(name: str) -> None:
    assert CursorType.of(name) is None


def test_integers_are_told_from_times() -> None:
    assert {kind for kind in CursorType if kind.is_integer} == {
        CursorType.SMALLINT,
        CursorType.INTEGER,
        CursorType.BIGINT,
    }


@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_a_numeric_becomes_a_decimal_only_where_spark_has_an_equal_one(
    precision: int, scale: int
) -> None:
    found = spark_type(f"numeric({precision},{scale})")
    if precision <= 38 and 0 <= scale <= precision:
        assert found == f"decimal({precision},{scale})"
        assert postgres_type(found) == f"numeric({precision},{scale})"
    else:
        assert found == "string"


@pytest.mark.parametrize(
    ("name", "spark"),
    [
        ("integer", "int"),
        ("timestamp(3) with time zone", "timestamp"),
        ("timestamp without time zone", "timestamp_ntz"),
        ("character varying(5)", "string"),
        ("jsonb", "string"),
        ("integer[]", "string"),
        ("double precision", "double"),
    ],
)
def test_each_postgres_type_has_its_spark_type(name: str, spark: str) -> None:
    assert spark_type(name) == spark


def test_only_types_that_spark_lacks_travel_as_text() -> None:
    direct = ("integer", "text", "bytea", "date", "timestamp with time zone", "boolean")
    assert not any(needs_text(name) for name in direct)
    assert all(needs_text(name) for name in ("numeric", "numeric(10,2)", "uuid", "text[]"))


def test_what_postgres_has_no_column_for_is_not_made_up() -> None:
    assert postgres_type("map<string,int>") is None
    assert postgres_type("struct<a:int>") is None


def test_a_position_is_written_as_postgres_does() -> None:
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert lsn_text(0x5) == "0/5"
    assert lsn_value("16/B374D848") == 0x16_B374D848
    assert lsn_value("0/00000005") == 5


@given(st.integers(0, 2**64 - 1))
def test_a_position_comes_back_as_it_went(value: int) -> None:
    assert lsn_value(lsn_text(value)) == value


IDS = st.integers(min_value=3, max_value=1 << 50)


@given(written=IDS, later=st.integers(min_value=1, max_value=EPOCH))
def test_an_id_within_one_round_is_found_again(written: int, later: int) -> None:
    assert widen(written % EPOCH, written + later) == written


@given(written=IDS, later=st.integers(min_value=1, max_value=1 << 40), back=IDS)
def test_no_row_written_since_an_id_is_ever_passed_over(
    written: int, later: int, back: int
) -> None:
    low = max(3, written - back)
    assert is_since(written % EPOCH, low, written + later)


@given(written=IDS, later=st.integers(min_value=1, max_value=1 << 40))
def test_an_id_is_never_taken_for_an_older_one_nor_for_one_to_come(
    written: int, later: int
) -> None:
    found = widen(written % EPOCH, written + later)
    assert written <= found < written + later
    assert (found - written) % EPOCH == 0


def test_lower_halves_that_have_come_round_are_told_apart_by_what_comes_next() -> None:
    after = 2 * EPOCH + 10  # the third round has just begun
    assert widen(EPOCH - 1, after) == 2 * EPOCH - 1
    assert widen(5, after) == 2 * EPOCH + 5
    assert widen(10, after) == EPOCH + 10
    assert not is_since(10, 2 * EPOCH - 1, after)


def standing(**values: object) -> SourcePosition:
    given = {
        "xmin": "700",
        "xmax": "705",
        "system": "7001",
        "database": "5",
        "timeline": 1,
        "lsn": "0/FF",
        "tables": (16384,),
    }
    return SourcePosition(**{**given, **values})  # type: ignore[arg-type]


def test_a_standing_comes_back_from_json_as_it_was() -> None:
    found = standing(cursor="2026-11-01", column="updated_at date")
    assert SourcePosition.from_json(found.to_json()) == found


def test_what_was_known_before_a_start_from_nothing_binds_nothing() -> None:
    recorded = {"standing": standing().to_json()}
    assert loaded_position(Watermark("shop.orders", "raw.orders", declaration=recorded)) is None


def test_a_load_that_leaves_the_watermark_alone_leaves_what_is_known_of_it() -> None:
    recorded = {"standing": standing().to_json(), "key": ["id"]}
    at = Watermark("shop.orders", "raw.orders", "700", declaration=recorded)
    assert position_after(Batch(BatchKind.LOOKBACK), at) == {"standing": standing().to_json()}
    assert position_after(Batch(BatchKind.WRITTEN), at) == {}


def test_places_in_the_log_are_compared_as_numbers() -> None:
    assert standing(lsn="0/FF").difference(standing(lsn="0/100")) is None


def test_another_server_database_timeline_or_an_earlier_log_is_a_difference() -> None:
    before = standing()
    for now, words in (
        (standing(system="7002"), "server 7001"),
        (standing(database="6"), "database 5"),
        (standing(timeline=2), "timeline 1"),
        (standing(lsn="0/FE"), "log was at 0/FF"),
    ):
        assert words in str(before.difference(now))


def test_what_a_person_has_moved_is_bound_to_its_server_and_to_nothing_else() -> None:
    recorded = {"standing": standing(cursor="2026-11-01").to_json()}
    moved = loaded_position(Watermark("shop.orders", "raw.orders", "650", declaration=recorded))
    assert moved is not None
    assert (moved.xmin, moved.cursor, moved.tables) == ("650", None, (16384,))
    assert moved.difference(standing(timeline=3, lsn="0/1")) is None
    assert "server" in str(moved.difference(standing(system="7002")))


def shape(*names: str, kind: str = "text") -> Shape:
    return Shape(tuple(StagedColumn(name, kind, kind) for name in names), (), None, False)


def recorded(before: Shape, *source_names: str) -> LoadedShape:
    stored = json.loads(json.dumps({"columns": record_columns(before)}))
    found = LoadedShape.recorded(stored, source_names)
    assert found is not None
    return found


def test_a_watermark_that_remembers_no_columns_tells_of_no_drift() -> None:
    assert LoadedShape.recorded(None) is None
    assert LoadedShape.recorded({"key": ["id"]}) is None


def test_what_the_source_still_has_is_left_out_and_not_gone() -> None:
    before = shape("a", "b", "c")
    assert [one.name for one in recorded(before).gone(shape("a"))] == ["b", "c"]
    assert [one.name for one in recorded(before, "a", "b").gone(shape("a"))] == ["c"]


def test_a_rename_keeps_place_and_type() -> None:
    before = shape("a", "b", "c")
    assert recorded(before).renamed(shape("a", "x", "c")) == {"b": "x"}
    assert recorded(before).renamed(shape("x", "b", "y")) == {"a": "x", "c": "y"}
    assert recorded(before).renamed(shape("a", "c", "x")) == {}
    assert recorded(before).renamed(shape("a", "x", "c", kind="integer")) == {}
    assert recorded(before, "b").renamed(shape("a", "x", "c")) == {}
    assert recorded(before).renamed(shape("c", "b", "a")) == {}
