"""What changes = "snapshot" refuses, and what it says to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.conftest import MakePlace, Place
from integration.standbys import point_at
from integration.test_snapshot_sync import ORDERS, same, seed
from integration.without_spark import Make, make, open_without_spark
from tidegate.core.errors import DeclarationError, SourceError, UsageError

__all__ = ["make"]

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "replaced": ({"mode": "replace"}, 'use mode = "merge"'),
    "appended": ({"mode": "append"}, "declare a key"),
    "newest": ({"duplicates": "newest"}, "choose a unique key"),
    "only_cursor": ({"cursor": "id"}, "declare the lookback too"),
    "only_lookback": ({"lookback": "1 hour"}, "declare the cursor too"),
    "nulls": ({"cursor": "id", "lookback": 5, "null_cursor": "exclude"}, "leave such rows out"),
    "view": ({"source": "shop:public.orders_view", "key": ["id"]}, "sync the table behind it"),
    "query": ({"source": "shop", "query": "SELECT 1 AS id", "key": ["id"]}, "table behind it"),
    "away": ({"source": "shop:public.away", "key": ["id"]}, "sync the table behind it"),
    "parted": ({"source": "shop:public.parted", "key": ["id"]}, 'use changes = "cursor"'),
    "by_xid": ({"cursor": "xid", "lookback": 5}, 'use changes = "cursor"'),
}


def test_what_cannot_be_done_is_refused_before_anything_is_written(make: Make) -> None:
    syncs = [
        {**ORDERS, "name": name, "target": f"warehouse:raw.{name}", **values}
        for name, (values, _) in REFUSED.items()
    ]
    project, place = make(ORDERS, *syncs, databases=2)
    seed(place)
    away = "SERVER files OPTIONS (filename '/dev/null')"
    place.source.execute(
        "ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "CREATE VIEW orders_view AS SELECT * FROM orders",
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
        f"CREATE FOREIGN TABLE away (id int) {away}",
        "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
        f"CREATE FOREIGN TABLE part PARTITION OF parted FOR VALUES FROM (100) TO (200) {away}",
    )
    for name, (_, words) in REFUSED.items():
        with pytest.raises(DeclarationError) as refused:
            project.run(name)
        assert words in str(refused.value.hint), name
    assert place.target.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'raw'") == 0

    place.target.execute("CREATE SCHEMA IF NOT EXISTS raw", "CREATE TABLE raw.orders (id int)")
    with pytest.raises(UsageError, match="no transaction is known"):
        project.adopt("orders", at="5")


def test_a_role_that_may_read_only_some_columns_is_told_what_it_lacks(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS)
    seed(place)
    role = f"reader_{place.folder.parent.name}"[:60].replace("-", "_")
    place.source.execute(f'CREATE ROLE "{role}"', f'GRANT SELECT (id, name) ON orders TO "{role}"')
    point_at(place, f"{place.source.conninfo} options='-c role={role}'")
    try:
        with pytest.raises(SourceError) as refused:
            place.open().run("orders")
        assert "GRANT SELECT ON public.orders" in str(refused.value.hint)
    finally:
        place.source.execute(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def record(place: Place, **values: Any) -> None:
    """Pretend that the source stood elsewhere when it was loaded."""
    found = json.dumps(values)
    place.target.execute(
        "UPDATE tidegate.etl_state SET declaration = jsonb_set(declaration, '{standing}',"
        f" declaration->'standing' || '{found}'::jsonb)"
    )


def test_another_or_an_older_source_is_refused_with_the_way_back(
    make: Make, make_place: MakePlace
) -> None:
    cursor = {**ORDERS, "changes": "cursor", "cursor": "id", "batch_rows": 4}
    before, place = make(cursor, databases=2)
    seed(place)
    before.run("orders")
    project = open_without_spark(make_place({**ORDERS, "batch_rows": 4}, beside=place))
    with pytest.raises(DeclarationError, match="its changes was cursor and is now snapshot"):
        project.run("orders")
    project.run("orders", full_refresh=True)
    assert project.run("orders").found_nothing

    cases: dict[str, dict[str, Any]] = {
        "server 6900000000000000000": {"system": "6900000000000000000"},
        "database 4": {"database": "4"},
        "timeline 7": {"timeline": 7},
        "its log was at FFFF/0": {"lsn": "FFFF/0"},
    }
    for words, values in cases.items():
        record(place, **values)
        with pytest.raises(SourceError, match=words) as refused:
            project.run("orders")
        assert "tidegate run orders --full-refresh" in str(refused.value.hint)
        place.source.execute("DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
        project.run("orders", full_refresh=True)
        assert same(place)

    # It may be loaded from the start in pieces.
    record(place, system="6900000000000000000")
    project.watermark("orders").rewind(reason="moved to another server")
    project.run("orders", max_batches=1)
    project.run("orders")
    assert same(place)
    assert project.run("orders").found_nothing

    # Ids that went back are refused.
    far = "4000000000"
    record(place, xmin=far)
    place.target.execute(f"UPDATE tidegate.etl_state SET high_watermark = '{far}'")
    with pytest.raises(SourceError, match=f"{far} was reached and its next one is"):
        project.run("orders")
