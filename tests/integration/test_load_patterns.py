"""Every mode and every way to shape a load, from a real source to the target."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import MakeProject, Place
from tidegate.core.errors import DeclarationError, UsageError
from tidegate.project import Project

TARGET = "warehouse:raw.orders"
ORDERS = {"source": "shop:public.orders", "target": TARGET, "cursor": "updated_at"}
STAMP = "'2026-01-01'::timestamptz + {} * interval '1 minute'"


def seed(place: Place, rows: int = 5) -> None:
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, total numeric,"
        " updated_at timestamptz NOT NULL)",
        f"INSERT INTO orders SELECT n, 'n' || n, n, {STAMP.format('n')}"
        f" FROM generate_series(1, {rows}) n",
        "CREATE INDEX ON orders (updated_at)",
    )


def change(place: Place) -> None:
    """One row changes, one is new, one goes."""
    place.source.execute(
        f"UPDATE orders SET name = 'changed', updated_at = {STAMP.format(10)} WHERE id = 2",
        f"INSERT INTO orders VALUES (6, 'new', 6, {STAMP.format(11)})",
        "DELETE FROM orders WHERE id = 5",
    )


NEWEST = [(1, "n1"), (2, "changed"), (3, "n3"), (4, "n4"), (5, "n5"), (6, "new")]
"""what a mode that sees no deletes has after `change`"""


def names(place: Place, table: str = "raw.orders") -> list[tuple[Any, ...]]:
    return place.target.execute(f"SELECT id, name FROM {table} ORDER BY id, name")


def reopen(project: Project, place: Place, *changes: tuple[str, str]) -> Project:
    file = place.folder / "tidegate.toml"
    text = file.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return place.open(project.context.spark)


def test_plain_append_adds_the_changed_row_beside_the_old_one(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "mode": "append", "batch_rows": 2}, databases=2)
    seed(place)
    # A tie larger than a batch is split, since rows have no key in the target.
    place.source.execute(f"UPDATE orders SET updated_at = {STAMP.format(1)}")
    assert [load.rows for load in project.run("orders").loads] == [2, 2, 1]
    change(place)
    assert project.run("orders").rows == 2
    assert project.run("orders").found_nothing
    assert names(place) == sorted([*NEWEST, (2, "n2")])
    with pytest.raises(UsageError, match="rows loaded again would be there twice"):
        project.watermark("orders").rewind("2026-01-01 00:02:00+00", reason="again")


def test_append_with_a_key_keeps_versions_behind_a_view(make_project: MakeProject) -> None:
    sync = {**ORDERS, "mode": "append", "key": "id", "lookback": "1 hour"}
    project, place = make_project(sync, databases=2)
    seed(place)
    project.run("orders")
    change(place)
    project.run("orders")
    project.run("orders")
    assert names(place) == NEWEST
    assert names(place, "raw.orders_raw") == sorted([*NEWEST, (2, "n2")])


@pytest.mark.parametrize("keyed", [True, False])
def test_replace_follows_the_source_whole_deletes_included(
    make_project: MakeProject, keyed: bool
) -> None:
    sync = {"source": "shop:public.orders", "target": TARGET, "mode": "replace"}
    project, place = make_project(sync, databases=2)
    seed(place)
    if not keyed:
        place.source.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    assert project.run("orders").rows == 5
    assert project.run("orders").found_nothing
    change(place)
    report = project.run("orders")
    assert report.rows == 5
    assert report.outcome.changed == (3 if keyed else 5)
    expected = [one for one in NEWEST if one[0] != 5]
    assert names(place) == expected
    place.target.execute("TRUNCATE raw.orders")
    assert project.run("orders").rows == 5
    assert names(place) == expected
    place.source.execute("DELETE FROM orders")
    project.run("orders")
    assert names(place) == []
    assert project.run("orders").found_nothing
    with pytest.raises(UsageError, match="loads everything each time and has no watermark"):
        project.watermark("orders").set("2026-01-01", reason="skip")


def test_only_the_wanted_columns_and_rows_are_loaded(make_project: MakeProject) -> None:
    chosen = {"columns": ["id", "name"], "where": "total > 2 -- the larger ones"}
    rest = {**ORDERS, "name": "rest", "target": "warehouse:raw.rest", "exclude_columns": ["total"]}
    project, place = make_project({**ORDERS, **chosen}, rest, databases=2)
    seed(place)
    assert project.run("orders").rows == 3
    assert place.target.execute("SELECT * FROM raw.orders ORDER BY id") == [
        (3, "n3"), (4, "n4"), (5, "n5"),
    ]  # fmt: skip
    change(place)
    assert project.run("orders").rows == 1
    assert names(place)[-1] == (6, "new")
    project.run("rest")
    columns = place.target.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'raw.rest'::regclass AND attnum > 0"
        " ORDER BY attnum"
    )
    assert columns == [("id",), ("name",), ("updated_at",)]


def test_a_where_is_read_in_parallel_by_blocks_too(make_project: MakeProject) -> None:
    project, place = make_project({**ORDERS, "where": "id % 2 = 0", "partitions": 3})
    seed(place, 2000)
    place.source.execute("ANALYZE orders")
    assert project.run("orders").rows == 1000


def test_a_query_and_a_view_are_loaded_like_a_table(make_project: MakeProject) -> None:
    query = (
        "SELECT o.id, o.name || '!' AS name, sum(o.total) AS sum, max(o.updated_at) AS at"
        " FROM orders o WHERE o.name LIKE 'n%' OR o.id = 6 GROUP BY 1, 2 -- by order"
    )
    large = {**ORDERS, "source": "shop:public.large", "null_cursor": "exclude"}
    project, place = make_project(
        {
            "source": "shop",
            "target": TARGET,
            "query": query,
            "key": "id",
            "cursor": "at",
            "null_cursor": "raise",
            "batch_rows": 2,
        },
        {**large, "name": "view", "target": "warehouse:raw.view", "key": "id"},
        {**large, "name": "keyless", "target": "warehouse:raw.keyless"},
        databases=2,
    )
    seed(place)
    assert [load.rows for load in project.run("orders").loads] == [2, 2, 1]
    change(place)
    assert project.run("orders").rows == 1
    assert names(place)[0] == (1, "n1!")
    assert names(place)[-1] == (6, "new!")
    place.source.execute("CREATE VIEW large AS SELECT * FROM orders WHERE total > 3")
    assert project.run("view").rows == 2
    with pytest.raises(DeclarationError, match=r"public\.large has no primary key") as raised:
        project.run("keyless")
    assert 'key = ["id"]' in str(raised.value)
    assert 'mode = "replace"' in str(raised.value)


def test_checks_and_statements_of_the_user_go_with_each_load(make_project: MakeProject) -> None:
    sync = {
        **ORDERS,
        "reject_limit": "50%",
        "after_sql": "INSERT INTO diary SELECT count(*) FROM raw.orders",
        "batch_rows": 2,
    }
    checks = {"not_four": "total <> 4"}
    project, place = make_project(sync, **{"sync.orders.checks": checks})
    seed(place)
    place.target.execute("CREATE TABLE diary (rows bigint)")
    report = project.run("orders")
    assert (report.rows, report.outcome.rejected) == (5, 1)
    assert names(place) == [(1, "n1"), (2, "n2"), (3, "n3"), (5, "n5")]
    assert place.target.execute("SELECT key, failed FROM raw.orders_rejected") == [
        ({"id": 4}, ["not_four"])
    ]
    assert place.target.execute("SELECT rows FROM diary ORDER BY 1") == [(2,), (3,), (4,)]


def test_a_changed_declaration_is_refused_with_the_way_out(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    place.source.execute(
        "ALTER TABLE orders ADD created_at timestamptz NOT NULL DEFAULT now()",
        "CREATE TABLE more (LIKE orders INCLUDING ALL)",
        "ALTER TABLE more ALTER id TYPE int",
        "INSERT INTO more SELECT id + 100, name, total, updated_at FROM orders",
    )
    project.run("orders")
    target = 'target = "warehouse:raw.orders"'
    for old, new, words in (
        ("public.orders", "public.more", "its source was shop:public.orders and is now"),
        ('"updated_at"', '"created_at"', "its cursor was updated_at and is now created_at"),
        ("raw.orders", "raw.other", "its target was warehouse:raw.orders and is now"),
        (target, f'{target}\nkey = "name"', r"its key was \(id\) and is now \(name\)"),
        ('"updated_at"', '"id"', "its cursor was updated_at and is now id"),
    ):
        changed = reopen(project, place, (old, new))
        with pytest.raises(DeclarationError, match=words) as raised:
            changed.run("orders")
        assert "tidegate r" in str(raised.value)
        assert len(names(place)) == 5
        reopen(project, place, (new, old))
    # A full refresh takes it up: another source by another kind of cursor.
    changed = reopen(project, place, ("public.orders", "public.more"), ('"updated_at"', '"id"'))
    assert changed.run("orders", full_refresh=True).rows == 5
    assert [number for number, _ in names(place)] == [101, 102, 103, 104, 105]
    assert changed.watermark("orders").value == "105"
    place.source.execute("ALTER TABLE more ALTER id TYPE bigint")
    assert changed.run("orders").found_nothing
