"""`tidegate watermark`: seen and moved by hand, with a reason that is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.cursor import CursorType
from tidegate.project import Project

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
}
EVENTS = {
    "name": "events",
    "source": "shop:public.events",
    "target": "warehouse:raw.events",
    "cursor": "id",
}


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


def shown(place: Place, name: str = "orders") -> Any:
    return watermark(place, "show", name, "--json").document


def load(project: Project, value: str, position: tuple[str, ...] | None = None) -> None:
    """Move the watermark of orders as a load does."""
    ledger = project.context.ledger("warehouse")
    ledger.ensure()
    watermarks = Watermarks(ledger)
    with ledger.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", CursorType.TIMESTAMPTZ.value)
        before = watermarks.get(session, "shop.orders", "raw.orders")
        after = replace(
            before,
            value=value,
            position=position,
            version=before.version + 1,
            rows_synced=before.rows_synced + 5,
            update_id=f"load-{before.version}",
        )
        watermarks.move(
            session,
            before,
            after,
            cursor_type=CursorType.TIMESTAMPTZ,
            fence=7,
            attempt_id="a1",
            moved_by="ana (tidegate run)",
            reason="load range",
        )


def test_before_the_first_load_every_watermark_is_at_the_start(place: Place) -> None:
    listed = watermark(place, "list")
    assert listed.code == DONE
    assert listed.out.count("at the start") == 2
    found = watermark(place, "show", "orders")
    assert found.code == DONE
    assert "watermark:    at the start" in found.out
    assert shown(place)["moves"] == []
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL")


def test_show_prints_value_version_rows_position_and_every_move(place: Place) -> None:
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
    assert "ana (tidegate run)" in text
    assert "fix tax" in text
    assert text.count("load range") == 1


def test_set_moves_forward_and_says_that_rows_are_skipped(place: Place) -> None:
    done = watermark(place, "set", "orders", "2026-11-01", "--reason", "loaded by hand")
    assert done.code == DONE
    assert "set to 2026-11-01 00:00:00+00" in done.out
    assert shown(place)["moves"][0]["reason"] == "loaded by hand"
    refused = watermark(place, "set", "orders", "2026-10-01", "--reason", "back")
    assert refused.code == USAGE
    assert "tidegate watermark rewind orders '2026-10-01 00:00:00+00'" in refused.err
    assert shown(place)["watermark"] == "2026-11-01 00:00:00+00"


def test_rewind_goes_back_under_a_new_generation(place: Place) -> None:
    watermark(place, "set", "orders", "2026-11-01", "--reason", "start")
    done = watermark(place, "rewind", "orders", "2026-10-01", "--reason", "fix tax", "--json")
    assert done.code == DONE
    assert done.document["watermark"] == "2026-10-01 00:00:00+00"
    assert done.document["generation"] == 1
    refused = watermark(place, "rewind", "orders", "2026-12-01", "--reason", "on")
    assert refused.code == USAGE
    assert "tidegate watermark set orders" in refused.err


def test_rewind_without_a_value_must_be_meant(place: Place) -> None:
    watermark(place, "set", "orders", "2026-11-01", "--reason", "start")
    refused = watermark(place, "rewind", "orders", "--reason", "oops")
    assert refused.code == USAGE
    assert "--to-start" in refused.err
    both = watermark(place, "rewind", "orders", "2026-10-01", "--to-start", "--reason", "oops")
    assert both.code == USAGE
    assert shown(place)["watermark"] == "2026-11-01 00:00:00+00"
    done = watermark(place, "rewind", "orders", "--to-start", "--reason", "all of it")
    assert done.code == DONE
    assert "everything is loaded again" in done.out
    assert shown(place)["watermark"] is None
    again = watermark(place, "rewind", "orders", "--to-start", "--reason", "again")
    assert again.code == USAGE
    assert "at the start already" in again.err


@pytest.mark.parametrize("command", ["set", "rewind"])
def test_nobody_moves_a_watermark_without_a_reason(place: Place, command: str) -> None:
    missing = watermark(place, command, "orders", "2026-11-01")
    assert missing.code == USAGE
    assert "--reason" in missing.err
    blank = watermark(place, command, "orders", "2026-11-01", "--reason", "  ")
    assert blank.code == USAGE
    assert "without a reason" in blank.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("orders", "yesterdayish"),
        ("orders", "12345"),
        ("orders", "2026-13-01"),
        ("orders", "'; DROP TABLE orders; --"),
        ("orders", ""),
        ("events", "2026-11-01"),
        ("events", "1.5"),
        ("events", "9223372036854775808"),
        ("events", "1); DELETE FROM tidegate.etl_state; --"),
    ],
)
def test_a_value_that_is_not_of_the_cursor_s_type_is_refused(
    place: Place, name: str, value: str
) -> None:
    refused = watermark(place, "set", name, value, "--reason", "why not")
    assert refused.code == USAGE
    assert f"{value!r} is not a" in refused.err
    assert "fix: give a value of the cursor's type" in refused.err
    assert shown(place, name)["version"] == 0


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_no_watermark_lies_at_infinity(place: Place, value: str) -> None:
    refused = tidegate(
        place.folder, "watermark", "set", "--reason", "never again", "--", "orders", value
    )
    assert refused.code == USAGE
    assert "infinity is no place" in refused.err
    assert shown(place)["version"] == 0


def test_a_watermark_of_another_cursor_can_only_begin_anew(place: Place) -> None:
    watermark(place, "set", "orders", "2026-11-01", "--reason", "start")
    place.target.execute("UPDATE tidegate.etl_state SET cursor_type = 'bigint', high_watermark = 7")
    refused = watermark(place, "rewind", "orders", "2026-10-01", "--reason", "back")
    assert refused.code == USAGE
    assert "is a bigint, its cursor is now a timestamp with time zone" in refused.err
    done = watermark(place, "rewind", "orders", "--to-start", "--reason", "new cursor")
    assert done.code == DONE
    assert shown(place)["cursor_type"] == "timestamp with time zone"


def test_a_move_waits_for_a_publishing_load_only_so_long(place: Place) -> None:
    load(place.open(), "2026-11-01 00:00:00+00")
    with place.target.connect() as session, session.transaction():
        session.execute("SELECT FROM tidegate.etl_state FOR UPDATE")
        refused = watermark(place, "set", "orders", "2026-12-01", "--reason", "on")
    assert refused.code == BUSY
    assert "being published" in refused.err
    assert shown(place)["watermark"] == "2026-11-01 00:00:00+00"


def test_an_unknown_sync_is_refused_with_the_nearest_one(place: Place) -> None:
    for arguments in (("show", "oders"), ("set", "oders", "1", "--reason", "x")):
        refused = watermark(place, *arguments)
        assert refused.code == USAGE
        assert "did you mean orders?" in refused.err
    as_json = watermark(place, "show", "oders", "--json")
    assert as_json.code == USAGE
    assert as_json.document["message"] == "there is no sync oders"


def test_the_list_has_what_undeclared_syncs_left_but_not_other_projects(place: Place) -> None:
    project = place.open()
    load(project, "2026-11-01 00:00:00+00")
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
    assert listed[0]["watermark"] == "2026-11-01 00:00:00+00"
    assert "gone (not declared)" in watermark(place, "list").out


def test_a_destination_that_cannot_be_reached_does_not_hide_the_others(
    make_place: MakePlace, place: Place
) -> None:
    text = (place.folder / "tidegate.toml").read_text()
    text += (
        '[sync.lost]\nsource = "shop:orders"\ntarget = "lost:raw.orders"\ncursor = "updated_at"\n'
    )
    text = text.replace(
        "[connections]\n", '[connections]\nlost = "host=127.0.0.1 port=1 dbname=x user=x"\n'
    )
    (place.folder / "tidegate.toml").write_text(text)
    listed = watermark(place, "list")
    assert listed.code == FAILED
    assert listed.out.count("at the start") == 2
    assert 'cannot connect to connection "lost"' in listed.out


def test_the_source_s_variables_are_not_needed_to_look_at_a_watermark(place: Place) -> None:
    text = (place.folder / "tidegate.toml").read_text()
    text = text.replace(f'shop = "{place.source.conninfo}"', 'shop = "${NOT_SET_ANYWHERE}"')
    (place.folder / "tidegate.toml").write_text(text)
    assert watermark(place, "list").code == DONE
    assert watermark(place, "show", "orders").code == DONE
    refused = watermark(place, "set", "orders", "2026-11-01", "--reason", "x")
    assert refused.code == USAGE
    assert "NOT_SET_ANYWHERE, which is not set" in refused.err


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
