"""A group of tables for the tests, and what it becomes."""

from __future__ import annotations

import json
from typing import Any

from tidegate.config.sync import Sync
from tidegate.ledger.watermarks import Watermarks

SHOP = {"name": "shop", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
STAMPED = "id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now()"


def expand(place: Any, *names: str) -> dict[str, Sync]:
    with place.open() as project:
        found = {sync.name: sync for sync in project.expand(names or None)}
        assert project.context.spark.started is False
    return found


def left_out(place: Any, group: str = "shop") -> dict[str, str]:
    with place.open() as project:
        expansion = project.expanded([group]).groups[0]
    return {str(one.relation): one.reason for one in expansion.left_out}


def record(place: Any, sync: str, table: str, **declaration: Any) -> None:
    """What a load of this sync would have left in the ledger."""
    with place.open() as project:
        ledger = project.context.ledger("warehouse")
        ledger.ensure()
        with ledger.connect() as connection:
            watermarks = Watermarks(ledger)
            watermarks.ensure(connection, f"shop.{sync}", table, None)
    place.target.execute(
        f"UPDATE tidegate.etl_state SET version = 1, declaration = '{json.dumps(declaration)}'"
        f" WHERE pipeline_name = 'shop.{sync}'"
    )
