"""Watermarks: moved by compare-and-set, never down; back only by a person, with a reason.

A person calls `tidegate watermark`, or the library.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done
from integration.conftest import Database, MakePlace, Place
from integration.here import tidegate
from integration.orders import ORDERS
from tidegate.core.errors import UsageError, WatermarkMoved
from tidegate.core.watermark import CursorType, Watermark
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.watermarks import Watermarks
from tidegate.postgres.connection import connect
from tidegate.project import Project

EVENTS = {
    "name": "events",
    "source": "shop:public.events",
    "target": "warehouse:raw.events",
    "cursor": "id",
}
LOST = (
    '[sync.lost]\nsource = "shop:orders"\ntarget = "lost:raw.orders"\ncursor = "updated_at"\n',
    'lost = "host=127.0.0.1 port=1 dbname=x user=x"\n',
)
NAMES = ("shop.orders", "raw.orders")
EMPTY = Watermark(*NAMES)


@pytest.fixture
def watermarks(database: Database) -> Watermarks:
    """Those of a destination where orders was never loaded."""
    ledger = Ledger(connect=partial(connect, database.conninfo, name="the destination"))
    with database.connect() as session:
        assert Watermarks(ledger).get(session, *NAMES) == EMPTY, "there is no ledger yet"
        assert Watermarks(ledger).of_project(session, "shop") == []
        ledger.ensure()
        Watermarks(ledger).ensure(session, *NAMES, "bigint")
    return Watermarks(ledger)


def move(
    watermarks: Watermarks,
    session: Any,
    before: Watermark,
    value: str | None,
    cursor_type: CursorType = CursorType.BIGINT,
    **changed: Any,
) -> None:
    after = replace(before, value=value, version=before.version + 1, update_id=f"u{value}")
    watermarks.move(
        session,
        before,
        replace(after, rows_synced=before.rows_synced + 5, **changed),
        cursor_type=cursor_type,
        fence=7,
        attempt_id="a1",
        moved_by="test",
        reason="load range",
    )


def test_a_move_sets_everything_and_is_written_down(
    database: Database, watermarks: Watermarks
) -> None:
    position = ("2026-11-01", 'k"1', "ü\\")
    with database.connect() as session:
        with session.transaction(force_rollback=True):
            move(watermarks, session, EMPTY, "10")
        assert watermarks.get(session, *NAMES).version == 0, "undone with the load's transaction"
        assert watermarks.moves(session, *NAMES) == []
        move(watermarks, session, EMPTY, "10", position=position)
        found = watermarks.get(session, *NAMES)
        (logged,) = watermarks.moves(session, *NAMES)
    assert (found.value, found.version, found.rows_synced) == ("10", 1, 5)
    assert (found.update_id, found.cursor_type, found.position) == ("u10", "bigint", position)
    assert (logged.old, logged.new, logged.rows, logged.version) == (None, "10", 5, 1)
    assert (logged.moved_by, logged.reason, logged.update_id) == ("test", "load range", "u10")
    assert database.execute("SELECT fence, attempt_id FROM tidegate.watermark_log") == [(7, "a1")]


def test_a_move_from_an_outdated_version_is_refused_and_changes_nothing(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        move(watermarks, session, EMPTY, "10")
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, EMPTY, "20")
        assert watermarks.get(session, *NAMES).value == "10"
        assert len(watermarks.moves(session, *NAMES)) == 1


def test_of_many_movers_at_once_exactly_one_wins(
    database: Database, watermarks: Watermarks
) -> None:
    def attempt(number: int) -> bool:
        with database.connect() as session, session.transaction():
            try:
                move(watermarks, session, EMPTY, str(number))
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
        move(watermarks, session, EMPTY, "9")
        at_nine = watermarks.get(session, *NAMES)
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, at_nine, "8")
        # As text "10" lies below "9"; as a number it does not.
        move(watermarks, session, at_nine, "10")
        assert watermarks.get(session, *NAMES).value == "10"

        # Times are compared as times, whatever their zone.
        kind, timed = CursorType.TIMESTAMPTZ, ("shop.times", "raw.times")
        watermarks.ensure(session, *timed, kind.value)
        move(watermarks, session, Watermark(*timed), "2026-11-01 10:00:00+00", kind)
        before = watermarks.get(session, *timed)
        with pytest.raises(WatermarkMoved):
            move(watermarks, session, before, "2026-11-01 11:00:00+02", kind)
        move(watermarks, session, before, "2026-11-01 09:30:00-01", kind)


def test_pipelines_and_tables_have_watermarks_of_their_own(
    database: Database, watermarks: Watermarks
) -> None:
    with database.connect() as session:
        for pipeline, table in (("a.x", "t"), ("a.x", "u"), ("a_.x", "t"), ("aX.x", "t")):
            watermarks.ensure(session, pipeline, table, "bigint")
        move(watermarks, session, Watermark("a.x", "t"), "10")
        assert watermarks.get(session, "a.x", "u").value is None
        assert watermarks.get(session, "a_.x", "t").value is None
        found = [(one.pipeline, one.table) for one in watermarks.of_project(session, "a")]
        assert found == [("a.x", "t"), ("a.x", "u")]
        # An underscore is not a wildcard.
        assert [one.pipeline for one in watermarks.of_project(session, "a_")] == ["a_.x"]


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    made = make_place(ORDERS, EVENTS, databases=2)
    made.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
        "CREATE TABLE events (id bigint PRIMARY KEY)",
    )
    return made


def watermark(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "watermark", *arguments)


def refused(place: Place, *arguments: str, code: int = USAGE) -> str:
    done = watermark(place, *arguments)
    assert done.code == code, done
    return done.err


def shown(place: Place, name: str = "orders") -> Any:
    return watermark(place, "show", name, "--json").document


def load(project: Project, value: str, position: tuple[str, ...] | None = None) -> None:
    """Move the watermark of orders as a load does."""
    ledger, kind = project.context.ledger("warehouse"), CursorType.TIMESTAMPTZ
    ledger.ensure()
    store = Watermarks(ledger)
    with ledger.connect() as session:
        store.ensure(session, *NAMES, kind.value)
        move(store, session, store.get(session, *NAMES), value, kind, position=position)


def test_before_the_first_load_every_watermark_is_at_the_start(place: Place) -> None:
    listed = watermark(place, "list")
    assert (listed.code, listed.out.count("at the start")) == (DONE, 2)
    found = watermark(place, "show", "orders")
    assert found.code == DONE
    assert "watermark:    at the start" in found.out
    assert shown(place)["moves"] == []
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL")
    for arguments in (("show", "oders"), ("set", "oders", "1", "--reason", "x")):
        assert "did you mean orders?" in refused(place, *arguments)
    as_json = watermark(place, "show", "oders", "--json")
    assert as_json.code == USAGE
    assert as_json.document["message"] == "there is no sync oders"


def test_show_and_list_print_where_each_stands_and_every_move(place: Place) -> None:
    project = place.open()
    load(project, "2026-11-01 00:00:00+00")
    load(project, "2026-11-01 00:00:00+00", ("2026-11-02 00:00:00+00", "17"))
    project.watermark("orders").rewind("2026-10-01", reason="fix tax")
    load(project, "2026-10-05 00:00:00+00", ("2026-10-06 00:00:00+00", "18"))
    found = shown(place)
    assert found["watermark"] == "2026-10-05 00:00:00+00"
    assert (found["generation"], found["version"], found["rows"]) == (1, 4, 5)
    assert found["position"] == ["2026-10-06 00:00:00+00", "18"]
    assert [move["reason"] for move in found["moves"]] == [
        "load range",
        "fix tax",
        "load range",
        "load range",
    ]
    text = watermark(place, "show", "orders", "--limit", "2").out
    assert "2026-10-06 00:00:00+00, 18" in text
    assert "test" in text
    assert "fix tax" in text
    assert text.count("load range") == 1

    # The list has what undeclared syncs left, but not other projects.
    watermarks = Watermarks(project.context.ledger("warehouse"))
    with place.target.connect() as session:
        watermarks.ensure(session, "shop.gone", "raw.gone", "date")
        watermarks.ensure(session, "shop.eu.orders", "raw.eu_orders", "date")
        watermarks.ensure(session, "shopping.orders", "raw.theirs", "date")
    listed = watermark(place, "list", "--json").document
    assert [(one["sync"], one["declared"]) for one in listed] == [
        ("orders", True),
        ("events", True),
        ("gone", False),
    ]
    assert listed[0]["watermark"] == "2026-10-05 00:00:00+00"
    assert "gone (not declared)" in watermark(place, "list").out


def test_set_moves_forward_and_rewind_back_under_a_new_generation(place: Place) -> None:
    for command in ("set", "rewind"):
        assert "--reason" in refused(place, command, "orders", "2026-11-01")
        blank = refused(place, command, "orders", "2026-11-01", "--reason", "  ")
        assert "without a reason" in blank
    done = watermark(place, "set", "orders", "2026-11-01", "--reason", "loaded by hand")
    assert done.code == DONE
    assert "set to 2026-11-01 00:00:00+00" in done.out
    assert shown(place)["moves"][0]["reason"] == "loaded by hand"
    words = refused(place, "set", "orders", "2026-10-01", "--reason", "back")
    assert "tidegate watermark rewind orders '2026-10-01 00:00:00+00'" in words
    words = refused(place, "rewind", "orders", "2026-12-01", "--reason", "on")
    assert "tidegate watermark set orders" in words
    # Without a value it must be meant.
    assert "--to-start" in refused(place, "rewind", "orders", "--reason", "oops")
    refused(place, "rewind", "orders", "2026-10-01", "--to-start", "--reason", "oops")
    assert shown(place)["watermark"] == "2026-11-01 00:00:00+00"

    # A load that is being published is waited for only so long.
    with place.target.connect() as session, session.transaction():
        session.execute("SELECT FROM tidegate.etl_state FOR UPDATE")
        words = refused(place, "set", "orders", "2026-12-01", "--reason", "on", code=BUSY)
    assert "being published" in words
    assert shown(place)["watermark"] == "2026-11-01 00:00:00+00"

    done = watermark(place, "rewind", "orders", "2026-10-01", "--reason", "fix tax", "--json")
    assert done.code == DONE
    assert done.document["watermark"] == "2026-10-01 00:00:00+00"
    assert done.document["generation"] == 1
    done = watermark(place, "rewind", "orders", "--to-start", "--reason", "all of it")
    assert done.code == DONE
    assert "everything is loaded again" in done.out
    assert shown(place)["watermark"] is None
    again = refused(place, "rewind", "orders", "--to-start", "--reason", "again")
    assert "at the start already" in again

    # That of another cursor can only begin anew.
    place.target.execute("UPDATE tidegate.etl_state SET cursor_type = 'bigint', high_watermark = 7")
    words = refused(place, "rewind", "orders", "2026-10-01", "--reason", "back")
    assert "is a bigint, its cursor is now a timestamp with time zone" in words
    done = watermark(place, "rewind", "orders", "--to-start", "--reason", "new cursor")
    assert done.code == DONE
    assert shown(place)["cursor_type"] == "timestamp with time zone"


def test_a_value_that_is_not_of_the_cursor_s_type_is_refused(place: Place) -> None:
    for name, value in (
        ("orders", "yesterdayish"),
        ("orders", "12345"),
        ("orders", "2026-13-01"),
        ("orders", "'; DROP TABLE orders; --"),
        ("orders", ""),
        ("events", "2026-11-01"),
        ("events", "1.5"),
        ("events", "9223372036854775808"),
        ("events", "1); DELETE FROM tidegate.etl_state; --"),
    ):
        words = refused(place, "set", name, value, "--reason", "why not")
        assert f"{value!r} is not a" in words
        assert "fix: give a value of the cursor's type" in words
    for value in ("infinity", "-infinity"):
        words = refused(place, "set", "--reason", "never again", "--", "orders", value)
        assert "infinity is no place" in words
    assert shown(place)["version"] == shown(place, "events")["version"] == 0


def test_what_cannot_be_reached_does_not_hide_the_others(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    text = file.read_text()
    sync, connection = LOST
    lost = f"{text}{sync}".replace("[connections]\n", f"[connections]\n{connection}")
    file.write_text(lost)
    listed = watermark(place, "list")
    assert listed.code == FAILED
    assert listed.out.count("at the start") == 2
    assert 'cannot connect to connection "lost"' in listed.out
    # The source's variables are not needed to look at a watermark.
    unset = text.replace(f'shop = "{place.source.conninfo}"', 'shop = "${NOT_SET_ANYWHERE}"')
    file.write_text(unset)
    assert watermark(place, "list").code == DONE
    assert watermark(place, "show", "orders").code == DONE
    words = refused(place, "set", "orders", "2026-11-01", "--reason", "x")
    assert "NOT_SET_ANYWHERE, which is not set" in words


def test_odd_names_are_shown_and_moved_like_any_other(make_place: MakePlace) -> None:
    odd = {
        "name": "odd",
        "source": 'shop:"Odd ""schema"""."100% of; DROP TABLE x"',
        "target": 'warehouse:"Odd ""schema"""."select"',
        "cursor": "Changed At",
    }
    place = make_place(odd)
    place.source.execute(
        'CREATE SCHEMA "Odd ""schema"""',
        'CREATE TABLE "Odd ""schema"""."100% of; DROP TABLE x"'
        ' (id int PRIMARY KEY, "Changed At" date NOT NULL)',
    )
    assert watermark(place, "set", "odd", "2026-11-01", "--reason", "it's 100%").code == DONE
    found = shown(place, "odd")
    assert found["watermark"] == "2026-11-01"
    assert found["target"] == 'warehouse:"Odd ""schema""".select'
    assert found["moves"][0]["reason"] == "it's 100%"


def test_the_library_moves_a_watermark_too_and_a_load_under_way_notices(place: Place) -> None:
    project = place.open()
    watermark = project.watermark("orders")
    watermark.set("2026-11-01", reason="start here")
    with pytest.raises(UsageError, match="lies below the watermark"):
        watermark.set("2026-10-01", reason="back")
    with pytest.raises(UsageError, match="does not lie below"):
        watermark.rewind("2026-11-01", reason="the same")
    before = watermark.get()
    after = watermark.rewind("2026-10-01", reason="fix tax")
    assert watermark.value == "2026-10-01 00:00:00+00"
    assert (after.generation, after.version) == (before.generation + 1, before.version + 1)
    # A load that was planned before that fails its compare.
    store = Watermarks(project.context.ledger("warehouse"))
    with place.target.connect() as session, pytest.raises(WatermarkMoved):
        move(store, session, before, "2026-11-02 00:00:00+00", CursorType.TIMESTAMPTZ)
    watermark.rewind(reason="all of it")
    assert watermark.value is None
    assert [move.reason for move in watermark.moves()] == ["all of it", "fix tax", "start here"]
    assert all(move.moved_by for move in watermark.moves())
