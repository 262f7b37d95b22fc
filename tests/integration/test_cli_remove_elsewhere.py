"""`tidegate remove` of what is not declared here, not reachable, or not this control plane's."""

from __future__ import annotations

from uuid import uuid4

import pytest

from integration.commands import DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from integration.left_behind import ALL, NOTHING, ORDERS, loaded, recorded


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A project whose sync has loaded three rows in two loads."""
    made = make_place(ORDERS, databases=3)
    loaded(made)
    return made


def remove(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "remove", *arguments)


def test_a_sync_that_is_not_declared_any_more_is_found_by_its_name(
    place: Place, make_place: MakePlace
) -> None:
    bare = make_place(beside=place)
    done = remove(bare, "orders", "--yes")
    assert done.code == DONE
    assert "of orders in warehouse:raw.orders" in done.out
    assert "still declared" not in done.out
    assert recorded(place) == NOTHING
    unknown = remove(bare, "orders", "--yes")
    assert unknown.code == USAGE
    assert "there is no sync orders" in unknown.err


def test_two_names_of_one_database_are_one_place(place: Place, make_place: MakePlace) -> None:
    connections = {"a": place.target.conninfo, "b": place.target.conninfo}
    bare = make_place(beside=place, connections=connections)
    done = remove(bare, "orders", "--yes", "--json")
    assert [one["target"] for one in done.document["removed"]] == ["a:raw.orders"]


def test_a_database_that_cannot_be_searched_is_named(place: Place, make_place: MakePlace) -> None:
    connections = {"gone": "host=127.0.0.1 port=1 user=x dbname=x", "unset": "${NOT_SET_ANYWHERE}"}
    bare = make_place(beside=place, connections=connections)
    refused = remove(bare, "orders", "--yes")
    assert refused.code == USAGE
    assert "gone could not be searched" in refused.err
    assert "unset could not be searched" in refused.err
    connections["warehouse"] = place.target.conninfo
    found = remove(make_place(beside=place, connections=connections), "orders", "--yes")
    assert found.code == DONE
    assert "gone could not be searched" in found.err


def test_a_table_of_another_control_plane_is_left_alone_until_taken_over(place: Place) -> None:
    place.target.execute(f"UPDATE tidegate.fences SET control_id = '{uuid4()}', token = 900")
    refused = remove(place, "orders", "--yes")
    assert refused.code == FAILED
    assert "loaded by another control plane" in refused.err
    assert "tidegate remove orders --take-over" in refused.err
    assert {**recorded(place), "observations": 1} == ALL
    assert remove(place, "orders", "--yes", "--take-over").code == DONE
    assert recorded(place) == NOTHING
