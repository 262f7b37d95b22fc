"""Slots: their names, and where a timeline was left."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.slot import Origin, publication_name, slot_name, switch_point

HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t0/50000A0\tno recovery target\n"


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_a_name_is_one_that_a_slot_may_have(project: str, connection: str, identity: str) -> None:
    name = slot_name(project, connection, identity)
    assert re.fullmatch(r"tidegate_[a-z0-9_]{1,54}", name)
    assert name == slot_name(project, connection, identity)


def test_names_differ_where_anything_does() -> None:
    names = {
        slot_name("shop", "db", "1"),
        slot_name("shop", "db", "2"),
        slot_name("shop_d", "b", "1"),
        slot_name("Shop", "db", "1"),
        slot_name("s" * 80, "db", "1"),
        slot_name("s" * 81, "db", "1"),
        publication_name("shop", "all.orders", "1"),
        publication_name("shop", "all_orders", "1"),
    }
    assert len(names) == 8
    assert slot_name("shop", "db", "1").startswith("tidegate_shop_db_")


def test_a_history_tells_where_each_timeline_was_left() -> None:
    assert switch_point(HISTORY, 1) == "0/3000148"
    assert switch_point(HISTORY, 2) == "0/50000A0"
    assert switch_point(HISTORY, 3) is None
    assert switch_point("", 1) is None


def test_an_origin_is_remembered_as_it_was() -> None:
    origin = Origin("7", 2, "slot", 16400, 16401)
    assert Origin.from_json(origin.to_json()) == origin
