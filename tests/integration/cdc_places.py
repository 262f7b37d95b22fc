"""Projects that read a table of their source by its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from integration.conftest import Database, Make, MakePlace, Place, open_without_spark
from tidegate.admin.status import read_status
from tidegate.core.errors import ChangesLost
from tidegate.load.planner import plan_project
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric(12, 2), note text)"
FILL = "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(1, 9) i"
SLOTS = (
    "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots"
    " WHERE database = current_database() AND NOT temporary"
)
PUBLICATIONS = "SELECT quote_ident(pubname) FROM pg_publication"


def orders_sync(**values: Any) -> dict[str, Any]:
    """The declaration of a sync of orders by its changes."""
    return {
        "name": "orders",
        "source": "shop:public.orders",
        "target": "warehouse:raw.orders",
        "changes": "cdc",
    } | values


@pytest.fixture
def make_cdc(make_place: MakePlace) -> Iterator[Make]:
    """A maker of projects without Spark that leave no slot behind."""
    places: list[Place] = []

    def made(*syncs: Mapping[str, Any], **options: Any) -> tuple[Project, Place]:
        places.append(make_place(*syncs, **{"databases": 2, **options}))
        return open_without_spark(places[-1]), places[-1]

    yield made
    for place in places:
        leave_nothing(place.source)


def leave_nothing(source: Database) -> None:
    """Take slots and publications out of a source, so that its database can be used again."""
    for name, _ in source.execute(SLOTS):
        source.execute(f"SELECT pg_drop_replication_slot('{name}')")
    for (name,) in source.execute(PUBLICATIONS):
        source.execute(f"DROP PUBLICATION {name}")


def loaded_orders(
    make_cdc: Make, *more: Mapping[str, Any], sections: Mapping[str, Any] | None = None, **sync: Any
) -> tuple[Project, Place]:
    """A project with a table of nine orders that has been copied."""
    project, place = make_cdc(orders_sync(**sync), *more, **(sections or {}))
    place.source.execute(ORDERS, FILL)
    project.run("orders")
    return project, place


def rows(database: Database, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The rows of a table in the order of their first column."""
    return database.execute(f"SELECT {columns} FROM {table} ORDER BY 1")


def is_equal(place: Place, table: str = "orders") -> bool:
    return rows(place.target, f"raw.{table}") == rows(place.source, table)


def refusals(project: Project) -> list[str]:
    """What plan refuses to do for the orders."""
    found = plan_project(project.context, [project.syncs["orders"]]).refusals
    return [one.message for one in found]


def lost(project: Project, said: str) -> None:
    """Run, plan and status all say it, and the way back."""
    with pytest.raises(ChangesLost, match=said) as raised:
        project.run("orders")
    assert "tidegate run orders --full-refresh" in (raised.value.hint or "")
    assert raised.value.permanent
    assert said in refusals(project)[0]
    assert said in (read_status(project.context, [project.syncs["orders"]]).syncs[0].problem or "")


def slot_of(database: Database) -> tuple[str, str]:
    """The slot in a source, and where it begins."""
    found = database.execute(SLOTS)
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
