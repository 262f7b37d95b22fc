"""Slots: their names."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.load.sources.cdc.slot import (
    SlotOrigin,
    Tables,
    TableState,
    publication_name,
    slot_name,
)


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


def test_an_origin_is_remembered_as_it_was() -> None:
    origin = SlotOrigin("7", 2, "slot", 16400, 16401)
    assert SlotOrigin.from_json(origin.to_json()) == origin
    tables = Tables(800, (TableState(16390, "public.orders", 0, 16390, 0, "cafe", False),))
    seen = replace(tables, states=(replace(tables.states[0], node=16500, empty=True),))
    origin = replace(origin, tables=tables, seen=seen)
    assert SlotOrigin.from_json(json.loads(json.dumps(origin.to_json()))) == origin
    # As it was remembered before there were tables.
    old = {**origin.to_json()}
    del old["tables"], old["seen"]
    assert SlotOrigin.from_json(old) == replace(origin, tables=None, seen=None)


def test_only_changes_of_rows_leave_tables_as_they_are() -> None:
    table = TableState(16390, "public.orders", 0, 16390, 16395, "cafe", False)
    tables = Tables(800, (table,))
    for other, same in [
        (replace(table, empty=True), True),
        (replace(table, node=16500), False),
        (replace(table, columns="f00d"), False),
        (replace(table, oid=1), False),
    ]:
        assert Tables(900, (other,)).is_as(tables) is same
    assert not tables.is_as(None)
    # A file alone is no rewrite; the table of large values tells, where there is one.
    assert not replace(table, node=16500, columns="f00d").is_rewritten(table)
    assert replace(table, node=16500, toast=16501).is_rewritten(table)
    small = replace(table, toast=0)
    assert replace(small, node=16500, columns="f00d").is_rewritten(small)
    assert not replace(small, columns="f00d").is_rewritten(small)
