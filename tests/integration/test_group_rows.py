"""`why` and `vacuum` of the tables of a group."""

from __future__ import annotations

import pytest

from integration.commands import DONE
from integration.queued import run_here
from integration.without_spark import Make, make
from tidegate.core.errors import UsageError
from tidegate.verify.report import RowReason

__all__ = ["make"]

GROUP = {
    "name": "shop",
    "source": "shop:public.*",
    "target": "warehouse:raw.{table}",
    "mode": "append",
    "key": "id",
    "cursor": "updated_at",
}


def test_a_table_of_a_group_is_found_by_its_name_and_by_its_target(make: Make) -> None:
    project, place = make(GROUP, databases=2)
    for table in ("orders", "items"):
        place.source.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text,"
            " updated_at timestamptz NOT NULL DEFAULT '2026-01-01')",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')",
        )
    for sync in project.expand():
        project.run(sync)
    assert project.why("warehouse:raw.items", id=2).reason is RowReason.EQUAL
    assert project.why("shop.orders", id=1).sync == "shop.orders"
    with pytest.raises(UsageError, match=r"no declared sync loads warehouse:raw\.nothing"):
        project.why("warehouse:raw.nothing", id=1)
    place.source.execute("UPDATE items SET name = 'c', updated_at = '2026-02-01'")
    for sync in project.expand():
        project.run(sync)
    done = run_here(place, "vacuum", "shop")
    assert done.code == DONE, done.said
    assert "shop.items: removed 2 superseded versions" in done.out
    assert "shop.orders: no superseded versions" in done.out
