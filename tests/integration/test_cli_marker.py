"""`tidegate marker`: which loads are in, and forgetting one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.commands import DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.cursor import CursorType

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
}


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(ORDERS, databases=2)


def marker(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "marker", *arguments)


def touch(place: Place, update_id: str, target: str = "warehouse:raw.orders") -> None:
    made = place.open().marker(target, update_id=update_id)
    with place.target.connect() as session:
        assert made.touch(session)


def listed(place: Place, *arguments: str) -> list[str]:
    return [one["update_id"] for one in marker(place, "list", *arguments, "--json").document]


def test_where_nothing_was_loaded_there_are_no_markers(place: Place) -> None:
    done = marker(place, "list")
    assert done.code == DONE
    assert done.out == "no markers in warehouse\n"
    assert listed(place) == []
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL")


def test_the_newest_markers_come_first_and_only_as_many_as_wanted(place: Place) -> None:
    for update_id in ("one", "two", "three"):
        touch(place, update_id)
    assert listed(place) == ["three", "two", "one"]
    assert listed(place, "--limit", "2") == ["three", "two"]
    text = marker(place, "list", "warehouse").out
    assert "raw.orders" in text
    assert text.index("three") < text.index("one")
    assert marker(place, "list", "--limit", "0").code == USAGE


def test_markers_of_one_table_can_be_listed_alone(place: Place) -> None:
    touch(place, "one")
    touch(place, "two", 'warehouse:"Odd ""schema"""."a.b; DROP TABLE x"')
    assert listed(place, "--table", "raw.orders") == ["one"]
    assert listed(place, "--table", '"Odd ""schema"""."a.b; DROP TABLE x"') == ["two"]
    assert listed(place, "--table", "raw.other") == []
    assert "for raw.other" in marker(place, "list", "--table", "raw.other").out
    refused = marker(place, "list", "--table", "a.b.c")
    assert refused.code == USAGE
    assert "is not a table name" in refused.err


def test_a_forgotten_load_counts_as_not_done(place: Place) -> None:
    touch(place, "it's 100%; DROP TABLE x")
    touch(place, "other")
    done = marker(place, "forget", "warehouse:raw.orders", "it's 100%; DROP TABLE x")
    assert done.code == DONE
    assert "forgot it's 100%; DROP TABLE x for warehouse:raw.orders" in done.out
    assert done.err == ""
    assert listed(place) == ["other"]
    again = marker(place, "forget", "warehouse:raw.orders", "it's 100%; DROP TABLE x")
    assert again.code == USAGE
    assert "there is no marker" in again.err
    assert "tidegate marker list warehouse" in again.err


def test_forgetting_for_one_table_leaves_the_others(place: Place) -> None:
    touch(place, "both")
    touch(place, "both", "warehouse:raw.other")
    assert marker(place, "forget", "warehouse:raw.orders", "both").code == DONE
    assert [one["table"] for one in marker(place, "list", "--json").document] == ["raw.other"]
    assert marker(place, "forget", "warehouse:raw.third", "both").code == USAGE
    assert listed(place) == ["both"]


def test_forgetting_the_load_of_a_sync_warns_that_a_rewind_is_what_reloads(place: Place) -> None:
    ledger = place.open().context.ledger("warehouse")
    touch(place, "shop.orders-g0-v0-abc")
    watermarks = Watermarks(ledger)
    with ledger.connect() as session:
        watermarks.ensure(session, "shop.orders", "raw.orders", "date")
        before = watermarks.get(session, "shop.orders", "raw.orders")
        watermarks.move(
            session,
            before,
            replace(before, value="2026-11-01", update_id="shop.orders-g0-v0-abc", version=1),
            cursor_type=CursorType.DATE,
            fence=1,
            attempt_id="a",
            moved_by="test",
            reason="load range",
        )
    done = marker(place, "forget", "warehouse:raw.orders", "shop.orders-g0-v0-abc")
    assert done.code == DONE
    assert "warning: shop.orders-g0-v0-abc was a load of orders" in done.err
    assert "tidegate watermark rewind orders VALUE" in done.err
    touch(place, "shop.orders-g0-v0-abc")
    as_json = marker(place, "forget", "warehouse:raw.orders", "shop.orders-g0-v0-abc", "--json")
    assert as_json.document["pipelines"] == ["shop.orders"]
    assert "rewind" in as_json.document["warning"]


def test_markers_that_luigi_wrote_without_a_schema_are_listed_for_their_table(
    place: Place,
) -> None:
    place.target.execute(
        "CREATE TABLE table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('a', 'orders'), ('b', 'raw.orders'), ('c', 'other'),"
        " ('d', NULL), ('e', 'mart.orders'), ('f', '')",
    )
    found = listed(place, "--table", "raw.orders")
    assert sorted(found) == ["a", "b", "d"]
    project = place.open()
    for update_id in "abcdef":
        exists = project.marker("warehouse:raw.orders", update_id=update_id).exists()
        assert exists == (update_id in found)
    assert marker(place, "list", "--table", "raw.orders").code == DONE


def test_a_marker_that_luigi_wrote_without_its_schema_can_be_forgotten(place: Place) -> None:
    place.target.execute(
        "CREATE TABLE table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('a', 'orders'), ('b', 'raw.orders'), ('c', 'other')",
    )
    assert marker(place, "forget", "warehouse:raw.orders", "a").code == DONE
    assert marker(place, "forget", "warehouse:raw.orders", "b").code == DONE
    assert marker(place, "forget", "warehouse:raw.orders", "c").code == USAGE
    assert place.target.execute("SELECT update_id FROM table_updates") == [("c",)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "nowhere"), 'there is no connection "nowhere"'),
        (("forget", "nowhere:raw.orders", "x"), 'there is no connection "nowhere"'),
        (("forget", "raw.orders", "x"), "names no connection"),
        (("forget", "warehouse:a.b.c", "x"), "is not a table name"),
    ],
)
def test_wrong_names_are_refused(place: Place, arguments: tuple[str, ...], message: str) -> None:
    refused = marker(place, *arguments)
    assert refused.code == USAGE
    assert message in refused.err


def test_a_role_that_may_not_read_the_markers_is_told_so(place: Place) -> None:
    touch(place, "one")
    role = f"reader_{place.target.value('SELECT current_database()')}"
    place.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        text = (place.folder / "tidegate.toml").read_text()
        reader = place.target.conninfo.replace("user=postgres", f"user={role}")
        reader = reader.replace("password=''", "password=reader")
        text = text.replace(f'warehouse = "{place.target.conninfo}"', f'warehouse = "{reader}"')
        (place.folder / "tidegate.toml").write_text(text)
        refused = marker(place, "list")
        assert refused.code == FAILED
        assert "listing markers: permission denied" in refused.err
    finally:
        place.target.execute(f"DROP ROLE {role}")


def test_without_syncs_the_only_connection_is_looked_into(
    place: Place, make_place: MakePlace
) -> None:
    touch(place, "one")
    connections = {"warehouse": place.target.conninfo}
    bare = make_place(beside=place, connections=connections)
    assert listed(bare) == ["one"]


def test_without_syncs_and_with_several_connections_it_says_what_to_type(
    place: Place, make_place: MakePlace
) -> None:
    touch(place, "one")
    bare = make_place(beside=place)
    refused = marker(bare, "list")
    assert refused.code == USAGE
    assert "no sync says which of shop, warehouse has the markers" in refused.err
    assert "tidegate marker list warehouse" in refused.err
    assert listed(bare, "warehouse") == ["one"]
    none = marker(make_place(beside=place, connections={}), "list")
    assert none.code == USAGE
    assert "under [connections]" in none.err
