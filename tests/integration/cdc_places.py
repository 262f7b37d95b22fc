"""Projects that read a table of their source by its changes."""

from __future__ import annotations

from typing import Any

from integration.conftest import Database, MakePlace, Place
from tidegate.postgres.embedded import EmbeddedServer

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric(12, 2), note text)"
FILL = "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(1, 9) i"


def orders_sync(**values: Any) -> dict[str, Any]:
    """The declaration of a sync of orders by its changes."""
    return {
        "name": "orders",
        "source": "shop:public.orders",
        "target": "warehouse:raw.orders",
        "changes": "cdc",
    } | values


def rows(database: Database, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The rows of a table in the order of their first column."""
    return database.execute(f"SELECT {columns} FROM {table} ORDER BY 1")


def slot_of(database: Database) -> tuple[str, str]:
    """The slot in a source, and where it begins."""
    found = database.execute(
        "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots"
        " WHERE database = current_database() AND NOT temporary"
    )
    assert len(found) == 1, found
    return found[0]


def place_on(make_place: MakePlace, server: EmbeddedServer) -> Place:
    """A project whose source is on a server of its own; the rest is elsewhere."""
    server.ensure_database("shop")
    source = Database(server.conninfo("shop"))
    made = make_place(databases=2)
    place = make_place(orders_sync(), beside=Place(source, made.target, made.source, made.folder))
    source.execute(ORDERS, FILL)
    return place
