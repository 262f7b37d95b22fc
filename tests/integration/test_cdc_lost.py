"""Changes that are lost or in no log are never passed over: a run stops and names the way on."""

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
    refusals,
    rows,
    slot_of,
)
from integration.conftest import Make, Place
from tidegate.admin.status import read_status
from tidegate.core.errors import ChangesLost, SourceError
from tidegate.project import Project

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


PARTS = (
    "CREATE TABLE orders (id int, day int, note text, PRIMARY KEY (id, day))"
    " PARTITION BY RANGE (day)",
    "CREATE TABLE one PARTITION OF orders FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE two PARTITION OF orders FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE empty PARTITION OF orders FOR VALUES FROM (90) TO (100)",
    "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(0, 19) i",
)
WITH_DEFAULTS = (
    PARTS[0].replace("int", "int DEFAULT 1").replace("text", "text DEFAULT 'x'"),
    *PARTS[1:],
)
MADE = "CREATE TABLE {} (id int NOT NULL, day int NOT NULL, note text)"
ATTACH = "ALTER TABLE orders ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
DETACH = "ALTER TABLE orders DETACH PARTITION {}"
LATE = (
    MADE.format("late"),
    "INSERT INTO late SELECT i, i FROM generate_series(20, 29) i",
    ATTACH.format("late", 20, 30),
)
REFRESH, REPAIR = True, False


def together(*statements: str) -> str:
    return "; ".join(("BEGIN", *statements, "COMMIT"))


def loaded(make: Make, *statements: str) -> tuple[Project, Place]:
    """A sync with its copy, and a change that waits behind it."""
    project, place = make(orders_sync())
    place.source.execute(*statements)
    project.run("orders")
    place.source.execute("UPDATE orders SET id = id WHERE id < 3")
    return project, place


def obstacles(project: Project) -> list[str]:
    """What plan and status say."""
    found = read_status(project.context, [project.syncs["orders"]])
    return [*refusals(project), *filter(None, [found.syncs[0].problem])]


PARTED = [
    (LATE, "public.late was attached", REFRESH),
    # The deletes of these rows are in the log, and that they came back is not.
    (
        (
            together(
                MADE.format("moved"),
                "WITH gone AS (DELETE FROM orders WHERE day > 24 RETURNING *)"
                " INSERT INTO moved SELECT id, day + 10, note FROM gone",
                ATTACH.format("moved", 30, 40),
            ),
        ),
        "public.moved was attached",
        REPAIR,
    ),
    (
        ("TRUNCATE two", "INSERT INTO orders VALUES (11, 11), (12, 12)"),
        "public.two was emptied by itself",
        REPAIR,
    ),
    (
        (DETACH.format("two"), "DELETE FROM two WHERE id = 12", ATTACH.format("two", 10, 20)),
        "public.two was detached and attached again",
        REPAIR,
    ),
    ((DETACH.format("two"),), "public.two was detached or dropped", REFRESH),
    (
        ("INSERT INTO orders VALUES (95, 95)", "DROP TABLE empty"),
        "public.empty was detached or dropped",
        REPAIR,
    ),
    (
        ("ALTER TABLE orders ALTER note TYPE text USING note || '!'",),
        "public.late was rewritten",
        REPAIR,
    ),
]
REWRITTEN = [
    (
        ("ALTER TABLE orders ALTER total TYPE int USING total + 1",),
        "public.orders was rewritten",
        REPAIR,
    ),
    (
        ("ALTER TABLE orders ADD more float DEFAULT random()",),
        "public.orders was rewritten",
        REFRESH,
    ),
]


@pytest.mark.parametrize(
    ("table", "events"),
    [
        (PARTS, PARTED),
        (
            (
                "CREATE TABLE orders (id int PRIMARY KEY, total int)",
                "INSERT INTO orders SELECT i, i FROM generate_series(1, 9) i",
            ),
            REWRITTEN,
        ),
    ],
)
def test_what_is_in_no_log_stops_a_run(
    make_cdc: Make, table: tuple[str, ...], events: list[tuple[tuple[str, ...], str, bool]]
) -> None:
    project, place = loaded(make_cdc, *table)
    for number, (event, said, way) in enumerate(events, 5000):
        place.source.execute(*event, f"INSERT INTO orders VALUES ({number}, 5)")
        with pytest.raises(ChangesLost, match=said) as raised:
            project.run("orders")
        assert "tidegate run orders --full-refresh" in (raised.value.hint or "")
        assert "tidegate verify orders --repair" in (raised.value.hint or "")
        # What is in the log is loaded all the same, and the rest stays as it is.
        assert (number,) in rows(place.target, "raw.orders", "id")
        if number == 5000:
            assert [said in one for one in obstacles(project)] == [True, True]
        if way is REFRESH:
            project.run("orders", full_refresh=True)
        else:
            project.verify("orders", repair=True)
        assert is_equal(place), said
    place.source.execute("UPDATE orders SET id = id + 1000 WHERE id = 5000")
    project.run("orders")
    assert is_equal(place)
    assert obstacles(project) == []


@pytest.mark.chaos
def test_a_partition_that_came_and_went_stops_runs_until_a_repair(make_cdc: Make) -> None:
    project, place = loaded(make_cdc, *PARTS)

    # A repair that finds nothing lets runs go on.
    place.source.execute("DELETE FROM orders WHERE day >= 10")
    project.run("orders")
    place.source.execute("DROP TABLE two")
    with pytest.raises(ChangesLost, match="two was detached or dropped"):
        project.run("orders")
    project.verify("orders", repair=True)
    project.run("orders")
    assert obstacles(project) == []

    # It came with rows, which a run has told of, and went.
    place.source.execute(*LATE, "UPDATE orders SET note = 'y' WHERE day >= 20")
    with pytest.raises(ChangesLost, match="late was attached"):
        project.run("orders")
    place.source.execute(DETACH.format("late"))
    for _ in range(2):
        with pytest.raises(ChangesLost, match="late was detached or dropped"):
            project.run("orders")
    project.verify("orders", repair=True)
    assert is_equal(place)
    project.run("orders")

    # It came and went between two runs.
    place.source.execute(
        "CREATE TABLE brief PARTITION OF orders FOR VALUES FROM (50) TO (60)",
        "INSERT INTO orders VALUES (50, 50)",
        DETACH.format("brief"),
    )
    for said in ("brief was attached and is gone", "brief was detached or dropped"):
        with pytest.raises(ChangesLost, match=said):
            project.run("orders")
    project.verify("orders", repair=True)
    assert is_equal(place)
    # What the log has of it once more, for a reader that is behind, says nothing new.
    place.source.execute("UPDATE orders SET note = 'z' WHERE day = 1")
    project.run("orders")
    assert is_equal(place)
    assert obstacles(project) == []


@pytest.mark.parametrize(
    ("table", "events"),
    [
        (
            (ORDERS, FILL, "ALTER TABLE orders ADD more int DEFAULT 7"),
            [
                (
                    "VACUUM FULL orders",
                    "CLUSTER orders USING orders_pkey",
                    "ALTER TABLE orders ALTER total SET NOT NULL",
                ),
                ("TRUNCATE orders", FILL),
            ],
        ),
        (
            WITH_DEFAULTS,
            [
                ("VACUUM FULL one", "VACUUM FULL two", "VACUUM FULL empty", "DROP TABLE empty"),
                ("TRUNCATE orders", "INSERT INTO orders VALUES (1, 1), (11, 11)"),
                (
                    together("SAVEPOINT s", "TRUNCATE orders"),
                    MADE.format("late"),
                    ATTACH.format("late", 20, 30),
                ),
                (
                    "INSERT INTO orders VALUES (20, 20)",
                    "CREATE TABLE deep PARTITION OF orders FOR VALUES FROM (40) TO (50)"
                    " PARTITION BY RANGE (day)",
                    "CREATE TABLE deeper PARTITION OF deep FOR VALUES FROM (40) TO (50)",
                    "INSERT INTO orders VALUES (41, 41)",
                    together(
                        "INSERT INTO orders VALUES (30, 3)",
                        "CREATE TABLE more PARTITION OF orders FOR VALUES FROM (30) TO (40)",
                        "INSERT INTO orders VALUES (31, 31)",
                    ),
                ),
            ],
        ),
    ],
)
def test_what_is_in_the_log_or_changes_nothing_goes_on(
    make_cdc: Make, table: tuple[str, ...], events: list[tuple[str, ...]]
) -> None:
    project, place = loaded(make_cdc, *table)
    for event in events:
        place.source.execute(*event)
        project.run("orders")
        assert is_equal(place), event
    assert obstacles(project) == []


FIVE = "INSERT INTO orders SELECT i, i FROM generate_series(1, 5) i"
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"


def test_a_key_that_two_rows_may_share_for_a_moment_is_refused(make_cdc: Make) -> None:
    project, place = make_cdc(orders_sync(key=["pos"]))
    for table, said, way_on in (
        (
            "CREATE TABLE orders (id int, pos int, PRIMARY KEY (pos) DEFERRABLE)",
            "constraint orders_pkey is DEFERRABLE",
            "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey,"
            " ADD CONSTRAINT orders_pkey PRIMARY KEY (pos)",
        ),
        (
            "CREATE TABLE orders (id int NOT NULL UNIQUE, pos int PRIMARY KEY DEFERRABLE)",
            "constraint orders_pkey is DEFERRABLE",
            'key = ["id"]',
        ),
        (
            "CREATE TABLE orders (id int, pos int)",
            "no unique index proves",
            "CREATE UNIQUE INDEX ON public.orders (pos)",
        ),
        (
            "CREATE TABLE orders (id int, pos int UNIQUE)",
            "column pos may be NULL",
            "ALTER TABLE public.orders ALTER COLUMN pos SET NOT NULL",
        ),
        (
            "CREATE TABLE orders (id int, pos int PRIMARY KEY);"
            "CREATE TABLE child () INHERITS (orders)",
            "public.child inherits from public.orders",
            "",
        ),
    ):
        place.source.execute("DROP TABLE IF EXISTS orders", table, FULL, FIVE)
        assert said in refusals(project)[0]
        with pytest.raises(SourceError, match=said) as raised:
            project.run("orders")
        assert way_on in (raised.value.hint or "")


def test_a_key_that_becomes_deferrable_is_refused_and_then_never_folded(make_cdc: Make) -> None:
    project, place = loaded(make_cdc, "CREATE TABLE orders (id int, pos int PRIMARY KEY)", FIVE)
    drop = "ALTER TABLE orders DROP CONSTRAINT orders_pkey"
    place.source.execute(
        FULL,
        f"{drop}, ADD CONSTRAINT orders_pkey PRIMARY KEY (pos) DEFERRABLE",
        "UPDATE orders SET pos = pos + 1",
    )
    said = "orders_pkey is DEFERRABLE"
    assert [said in one for one in obstacles(project)] == [True, True]
    with pytest.raises(SourceError, match=said):
        project.run("orders")

    # The log still has the time in which two rows could share a key.
    place.source.execute(f"{drop}, ADD CONSTRAINT orders_pkey PRIMARY KEY (pos)")
    with pytest.raises(ChangesLost, match="two rows had one key") as raised:
        project.run("orders")
    assert "--full-refresh" in (raised.value.hint or "")
    project.run("orders", full_refresh=True)
    assert is_equal(place)
