"""Watermarks: moved by compare-and-set, never down; back only by a person, with a reason."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from integration.conftest import Database, MakePlace, Place
from tidegate.errors import UsageError, WatermarkMoved
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.cursor import CursorType
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import connect
from tidegate.project import Project

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
}


@pytest.fixture
def watermarks(database: Database) -> Watermarks:
    ledger = Ledger(connect=partial(connect, database.conninfo, name="the destination"))
    ledger.ensure()
    return Watermarks(ledger)


def empty(pipeline: str = "shop.orders", table: str = "raw.orders") -> Watermark:
    return Watermark(pipeline, table)


def move(
    watermarks: Watermarks,
    session: Any,
    before: Watermark,
    value: str | None,
    cursor_type: CursorType = CursorType.BIGINT,
) -> None:
    after = replace(before, value=value, version=before.version + 1, update_id=f"u{value}")
    watermarks.move(
        session,
        before,
        replace(after, rows_synced=before.rows_synced + 5),
        cursor_type=cursor_type,
        fence=7,
        attempt_id="a1",
        moved_by="test",
        reason="load range",
    )


def test_a_pipeline_that_never_ran_has_an_empty_watermark(database: Database) -> None:
    ledger = Ledger(connect=partial(connect, database.conninfo, name="the destination"))
    with database.connect() as session:
        assert Watermarks(ledger).get(session, "shop.orders", "raw.orders") == empty()
        assert Watermarks(ledger).of_project(session, "shop") == []


def test_a_move_sets_everything_and_is_written_down(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")
        move(watermarks, session, empty(), "10")
        found = watermarks.get(session, "shop.orders", "raw.orders")
        assert (found.value, found.version, found.rows_synced) == ("10", 1, 5)
        assert (found.update_id, found.cursor_type) == ("u10", "bigint")
        (logged,) = watermarks.moves(session, "shop.orders", "raw.orders")
    assert (logged.old, logged.new, logged.rows, logged.version) == (None, "10", 5, 1)
    assert (logged.moved_by, logged.reason, logged.update_id) == ("test", "load range", "u10")
    assert database.execute("SELECT fence, attempt_id FROM tidegate.watermark_log") == [(7, "a1")]


def test_a_move_from_an_outdated_version_is_refused_and_changes_nothing(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")
        move(watermarks, session, empty(), "10")
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, empty(), "20")
        assert watermarks.get(session, "shop.orders", "raw.orders").value == "10"
        assert len(watermarks.moves(session, "shop.orders", "raw.orders")) == 1


def test_of_many_movers_at_once_exactly_one_wins(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")

    def attempt(number: int) -> bool:
        with database.connect() as session, session.transaction():
            try:
                move(watermarks, session, empty(), str(number))
            except WatermarkMoved:
                return False
            return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(attempt, range(12)))
    assert won.count(True) == 1
    assert database.value("SELECT version FROM tidegate.etl_state") == 1


def test_a_move_never_goes_down_compared_as_the_cursor_s_type(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")
        move(watermarks, session, empty(), "9")
        at_nine = watermarks.get(session, "shop.orders", "raw.orders")
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, at_nine, "8")
        # As text "10" lies below "9"; as a number it does not.
        move(watermarks, session, at_nine, "10")
        assert watermarks.get(session, "shop.orders", "raw.orders").value == "10"


def test_times_are_compared_as_times_whatever_their_zone(
    database: Database, watermarks: Watermarks
) -> None:
    kind = CursorType.TIMESTAMPTZ
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", kind.value)
        move(watermarks, session, empty(), "2026-11-01 10:00:00+00", kind)
        before = watermarks.get(session, "shop.orders", "raw.orders")
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, before, "2026-11-01 11:00:00+02", kind)
        move(watermarks, session, before, "2026-11-01 09:30:00-01", kind)


def test_a_move_is_undone_with_the_load_s_transaction(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")
        with session.transaction(force_rollback=True):
            move(watermarks, session, empty(), "10")
        assert watermarks.get(session, "shop.orders", "raw.orders").version == 0
        assert watermarks.moves(session, "shop.orders", "raw.orders") == []


def test_pipelines_and_tables_have_watermarks_of_their_own(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        for pipeline, table in (("a.x", "t"), ("a.x", "u"), ("a_.x", "t"), ("aX.x", "t")):
            watermarks.ensure(session, pipeline, table, "bigint")
        move(watermarks, session, empty("a.x", "t"), "10")
        assert watermarks.get(session, "a.x", "u").value is None
        assert watermarks.get(session, "a_.x", "t").value is None
        found = [(one.pipeline, one.table) for one in watermarks.of_project(session, "a")]
        assert found == [("a.x", "t"), ("a.x", "u")]
        # An underscore is not a wildcard.
        assert [one.pipeline for one in watermarks.of_project(session, "a_")] == ["a_.x"]


def test_a_position_inside_a_tie_is_kept_as_it_was(
    database: Database, watermarks: Watermarks
) -> None:
    position = ("2026-11-01", 'k"1', "ü\\")
    with database.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "bigint")
        watermarks.move(
            session,
            empty(),
            replace(empty(), position=position),
            cursor_type=CursorType.BIGINT,
            fence=1,
            attempt_id="a",
            moved_by="t",
            reason="r",
        )
        assert watermarks.get(session, "shop.orders", "raw.orders").position == position


@pytest.fixture
def shop(make_place: MakePlace) -> tuple[Project, Place]:
    place = make_place(ORDERS, databases=2)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)"
    )
    return place.open(), place


def test_a_person_moves_the_watermark_forward_and_back_with_a_reason(
    shop: tuple[Project, Place],
) -> None:
    project, _ = shop
    watermark = project.watermark("orders")
    assert watermark.value is None
    watermark.set("2026-11-01", reason="start here")
    assert watermark.value == "2026-11-01 00:00:00+00"
    before = watermark.get()
    after = watermark.rewind("2026-10-01", reason="fix tax")
    assert watermark.value == "2026-10-01 00:00:00+00"
    assert after.generation == before.generation + 1
    assert after.version == before.version + 1
    watermark.rewind(reason="all of it")
    assert watermark.value is None
    assert [move.reason for move in watermark.moves()] == ["all of it", "fix tax", "start here"]
    assert all(move.moved_by for move in watermark.moves())


def test_set_goes_only_forward_and_rewind_only_back(shop: tuple[Project, Place]) -> None:
    watermark = shop[0].watermark("orders")
    watermark.set("2026-11-01", reason="start")
    with pytest.raises(UsageError, match="lies below the watermark") as raised:
        watermark.set("2026-10-01", reason="back")
    assert "tidegate watermark rewind orders" in str(raised.value)
    with pytest.raises(UsageError, match="does not lie below") as raised:
        watermark.rewind("2026-12-01", reason="on")
    assert "tidegate watermark set orders" in str(raised.value)
    with pytest.raises(UsageError, match="does not lie below"):
        watermark.rewind("2026-11-01", reason="the same")
    assert watermark.value == "2026-11-01 00:00:00+00"


def test_no_move_without_a_reason_or_with_a_value_of_another_type(
    shop: tuple[Project, Place],
) -> None:
    watermark = shop[0].watermark("orders")
    with pytest.raises(UsageError, match="without a reason"):
        watermark.set("2026-11-01", reason="  ")
    for value in ("yesterdayish", "12x", "'; DROP TABLE orders; --"):
        with pytest.raises(UsageError, match="is not a timestamp with time zone"):
            watermark.set(value, reason="why not")
    with pytest.raises(UsageError, match="at the start already"):
        watermark.rewind(reason="all of it")
    assert watermark.get().version == 0


def test_a_person_s_move_makes_a_load_under_way_fail_its_compare(
    shop: tuple[Project, Place],
) -> None:
    project, place = shop
    watermark = project.watermark("orders")
    watermark.set("2026-11-01", reason="start")
    planned = watermark.get()
    watermark.rewind("2026-10-01", reason="fix tax")
    store = Watermarks(project.context.ledger("warehouse"))
    with place.target.connect() as session, pytest.raises(WatermarkMoved):
        move(store, session, planned, "2026-11-02 00:00:00+00", CursorType.TIMESTAMPTZ)
