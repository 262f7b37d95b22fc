"""What happens to a table and is in no log is noticed: a run stops and names the way on."""

from __future__ import annotations

import pytest

from integration.cdc_places import FILL, ORDERS, is_equal, make_cdc, orders_sync, refusals, rows
from integration.conftest import Place
from integration.without_spark import Make
from tidegate.admin.status import read_status
from tidegate.core.errors import ChangesLost, SourceError
from tidegate.project import Project

__all__ = ["make_cdc"]

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
