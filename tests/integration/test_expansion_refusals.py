"""Groups that cannot be meant, and tables that cannot be loaded: refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.groups import SHOP, STAMPED, expand
from tidegate.errors import (
    DeclarationError,
    SettingsError,
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "warehouse:raw.all"}, r"put \{table\} into it"),
        ({"target": 'warehouse:raw."{table}"'}, r"put \{table\} into it"),
        ({"source": "shop:public.orders"}, r'for many write source = "shop:public\.\*"'),
        ({"source": 'shop:public."*"'}, "source names one table"),
        ({"include": ["a.b.c"]}, "a pattern or a list of patterns"),
        ({"include": []}, "a pattern or a list of patterns"),
        ({"exclude": 7}, "a pattern or a list of patterns"),
        ({"mode": "replace", "cursor": "x"}, "cursor is set beside"),
    ],
)
def test_a_group_that_cannot_be_meant_is_refused_by_its_settings(
    make_place: Any, change: dict[str, Any], message: str
) -> None:
    place = make_place({**SHOP, **change})
    with pytest.raises(SettingsError, match=message):
        place.open()


def test_include_beside_a_single_table_is_refused(make_place: Any) -> None:
    single = {"source": "shop:public.a", "target": "warehouse:raw.a", "include": ["a"]}
    with pytest.raises(SettingsError, match="include is set, but source names one table"):
        make_place(single).open()


def test_a_pattern_that_matches_nothing_is_refused_with_what_is_there(make_place: Any) -> None:
    other = {"name": "other", "source": "shop:public.o*", "target": "warehouse:raw.{table}"}
    place = make_place({**SHOP, "source": "shop:public.ordres_*"}, other)
    place.source.execute(f"CREATE TABLE orders ({STAMPED})")
    found = expand(place)
    refused = found.pop("shop").refused
    assert isinstance(refused, DeclarationError)
    assert "nothing matches shop:public.ordres_*" in refused.message
    assert "public.orders" in (refused.hint or "")
    # The other group goes on.
    assert found["other.orders"].refused is None
    place = make_place({**SHOP, "exclude": ["*"]}, beside=place)
    refused = expand(place)["shop"].refused
    assert refused is not None
    assert "everything that matches shop:public.* is left out" in refused.message
    assert 'public.orders: exclude = "*"' in (refused.hint or "")


def test_a_pattern_in_include_that_does_nothing_is_pointed_out(make_place: Any) -> None:
    place = make_place({**SHOP, "include": ["orders", "ordres"]})
    place.source.execute(f"CREATE TABLE orders ({STAMPED})")
    with place.open() as project:
        expansion = project.expanded().groups[0]
    assert expansion.warnings == ('include = "ordres" matches nothing of shop:public.*',)


def test_two_syncs_with_one_target_are_refused_and_both_named(make_place: Any) -> None:
    place = make_place(
        {**SHOP, "source": "shop:*.*", "target": "warehouse:raw.{table}"},
        {"name": "mine", "source": "shop:sales.fine", "target": "warehouse:raw.items"},
        databases=2,
    )
    place.source.execute(
        "CREATE SCHEMA sales",
        f"CREATE TABLE orders ({STAMPED})",
        f"CREATE TABLE sales.orders ({STAMPED})",
        f"CREATE TABLE sales.fine ({STAMPED})",
        f"CREATE TABLE items ({STAMPED})",
        f"CREATE TABLE alone ({STAMPED})",
    )
    found = expand(place)
    refused = {name: sync.refused.message for name, sync in found.items() if sync.refused}
    assert refused.keys() == {
        "shop.public.orders",
        "shop.sales.orders",
        "shop.public.items",
        "mine",
    }
    assert "shop.sales.orders (shop:sales.orders)" in refused["shop.public.orders"]
    assert "have one target, warehouse:raw.orders" in refused["shop.public.orders"]
    assert "mine (shop:sales.fine)" in refused["shop.public.items"]
    hint = found["shop.sales.orders"].refused
    assert hint is not None
    assert "{schema}" in str(hint.hint)
    # One table by itself is refused as well, although nothing else was asked for.
    assert expand(place, "shop.public.items")["shop.public.items"].refused is not None


def test_one_target_under_two_names_of_one_database_is_one_target(make_place: Any) -> None:
    place = make_place(
        {"name": "a", "source": "shop:public.a", "target": "warehouse:raw.t"},
        {"name": "b", "source": "shop:public.b", "target": "again:raw.t"},
        {"name": "c", "source": "shop:public.c", "target": "elsewhere:raw.t"},
    )
    file = place.folder / "tidegate.toml"
    again = json.dumps(place.target.conninfo + " connect_timeout=9")
    more = f'[connections]\nagain = {again}\nelsewhere = "postgresql://nobody@127.0.0.1:1/x"\n'
    file.write_text(file.read_text().replace("[connections]\n", more))
    with place.open() as project:
        refused = {sync.name for sync in project.expand() if sync.refused is not None}
        assert refused == {"a", "b"}
        with pytest.raises(DeclarationError, match=r"a \(shop:public.a\) and b \(shop:public.b\)"):
            project.run("a")
