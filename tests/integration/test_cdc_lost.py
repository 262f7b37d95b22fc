"""Changes that cannot be had any more are never passed over: an error says so, and the way back."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from integration.cdc_places import (
    FILL,
    ORDERS,
    PUBLICATIONS,
    is_equal,
    loaded_orders,
    lost,
    make_cdc,
    orders_sync,
    slot_of,
)
from integration.conftest import Place
from integration.without_spark import Make
from tidegate.core.errors import SourceError

__all__ = ["make_cdc"]


def drop_slot(place: Place) -> str:
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_drop_replication_slot('{name}')")
    return name


def make_slot_anew(place: Place, plugin: str) -> None:
    name = drop_slot(place)
    change(place)
    place.source.execute(f"SELECT pg_create_logical_replication_slot('{name}', '{plugin}')")


def read_slot(place: Place) -> None:
    change(place)
    name, _ = slot_of(place.source)
    place.source.execute(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")


def alter_publication(place: Place, statement: str) -> None:
    place.source.execute(statement.format(place.source.value(PUBLICATIONS)))


def change(place: Place) -> None:
    """What would be lost."""
    place.source.execute(
        "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)",
        "INSERT INTO orders SELECT max(id) + 1, 5 FROM orders",
    )


EVENTS: list[tuple[str, Callable[[Place], object]]] = [
    ("is gone", drop_slot),
    ("there is a gap", lambda place: make_slot_anew(place, "pgoutput")),
    ("there is a gap", read_slot),
    ("was made anew, for test_decoding", lambda place: make_slot_anew(place, "test_decoding")),
    ("was dropped", lambda place: alter_publication(place, "DROP PUBLICATION {}")),
    (
        "was altered",
        lambda place: alter_publication(place, "ALTER PUBLICATION {} SET (publish = 'insert')"),
    ),
    (
        "is not in it",
        lambda place: place.source.execute(
            "DROP TABLE orders", ORDERS, "INSERT INTO orders VALUES (1, 1), (2, 2)"
        ),
    ),
]


def test_what_happened_to_a_slot_or_publication_is_noticed(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc)
    for said, event in EVENTS:
        publication = place.source.value(PUBLICATIONS)
        event(place)
        change(place)
        lost(project, said)
        if said == "was dropped":
            place.source.execute(f"CREATE PUBLICATION {publication} FOR TABLE orders")
            lost(project, "was made anew")
        # The way back that every error names leads back.
        project.run("orders", full_refresh=True, allow_removal=True)
        assert is_equal(place), said
    change(place)
    assert project.run("orders").loads
    assert is_equal(place)


def test_a_destination_that_was_restored_from_a_backup(make_cdc: Make) -> None:
    project, place = loaded_orders(make_cdc)
    project.context.databases.close()
    with psycopg.connect(place.target.conninfo) as session:
        name = session.info.dbname
    place.source.execute(f'CREATE DATABASE "{name}_backup" TEMPLATE "{name}"')
    change(place)
    project.run("orders")
    project.context.databases.close()

    place.source.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    place.source.execute(f'ALTER DATABASE "{name}_backup" RENAME TO "{name}"')

    lost(project, "there is a gap")
    project.run("orders", full_refresh=True, allow_removal=True)
    assert is_equal(place)


def test_a_slot_waits_for_open_transactions_no_longer_than_it_may(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync(), cdc={"start_timeout": "1s"})
    place.source.execute(ORDERS, FILL)
    with place.source.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders VALUES (40, 4)")
        with pytest.raises(SourceError, match=f"session {session.info.backend_pid}"):
            project.run("orders")
        session.execute("COMMIT")
    project.run("orders")
    assert is_equal(place)
