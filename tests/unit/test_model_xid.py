"""The 64-bit id of a row is found from its lower half, also where that has come round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batch import Batch, BatchKind
from tidegate.core.watermark import Watermark
from tidegate.load.sources.xmin import (
    EPOCH,
    SourcePosition,
    is_since,
    loaded_position,
    position_after,
    widen,
)

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
