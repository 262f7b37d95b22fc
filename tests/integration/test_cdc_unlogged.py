"""What happens to a table and is in no log is noticed: a run stops and names the way on."""

from __future__ import annotations

import pytest

from integration.cdc_places import FILL, ORDERS, orders_sync, rows
from integration.conftest import Place
from integration.without_spark import Make, make
from tidegate.errors import ChangesLost, SourceError
from tidegate.insight.status import read_status
from tidegate.pipeline.plan import plan_project
from tidegate.project import Project

__all__ = ["make"]

PARTS = (
    "CREATE TABLE orders (id int, day int, note text, PRIMARY KEY (id, day))"
    " PARTITION BY RANGE (day)",
    "CREATE TABLE one PARTITION OF orders FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE two PARTITION OF orders FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE empty PARTITION OF orders FOR VALUES FROM (90) TO (100)",
    "INSERT INTO orders SELECT i, i, 'x' FROM generate_series(0, 19) i",
)
MADE = "CREATE TABLE {} (id int NOT NULL, day int NOT NULL, note text)"
ATTACH = "ALTER TABLE orders ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
DETACH = "ALTER TABLE orders DETACH PARTITION {}"
WIDE = "ALTER TABLE orders ALTER note TYPE text USING note || '!'"
NARROW = "CREATE TABLE orders (id int PRIMARY KEY, total int)"
FILL_NARROW = "INSERT INTO orders SELECT i, i FROM generate_series(1, 9) i"
REFRESH, REPAIR = True, False


def together(*statements: str) -> str:
    return "; ".join(("BEGIN", *statements, "COMMIT"))


def loaded(make: Make, *statements: str) -> tuple[Project, Place]:
    """A sync with its copy and a change behind it."""
    project, place = make(orders_sync(), databases=2)
    place.source.execute(*statements)
    project.run("orders")
    place.source.execute("UPDATE orders SET id = id WHERE id < 3")
    project.run("orders")
    return project, place


def is_equal(place: Place) -> bool:
    return rows(place.target, "raw.orders") == rows(place.source, "orders")


def obstacles(project: Project) -> list[str]:
    """What plan and status say."""
    syncs = [project.syncs["orders"]]
    planned = [one.message for one in plan_project(project.context, syncs).refusals]
    return [*planned, *filter(None, [read_status(project.context, syncs).syncs[0].problem])]


@pytest.mark.parametrize(
    ("table", "events"),
    [
        (
            PARTS,
            [
                (
                    (
                        MADE.format("late"),
                        "INSERT INTO late SELECT i, i FROM generate_series(20, 29) i",
                        ATTACH.format("late", 20, 30),
                    ),
                    "public.late was attached",
                    REFRESH,
                ),
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
                    (
                        DETACH.format("two"),
                        "DELETE FROM two WHERE id = 12",
                        ATTACH.format("two", 10, 20),
                    ),
                    "public.two was detached and attached again",
                    REPAIR,
                ),
                ((DETACH.format("two"),), "public.two was detached or dropped", REFRESH),
                (
                    ("INSERT INTO orders VALUES (95, 95)", "DROP TABLE empty"),
                    "public.empty was detached or dropped",
                    REPAIR,
                ),
                ((WIDE,), "public.late was rewritten", REPAIR),
            ],
        ),
        ((ORDERS, FILL), [((WIDE,), "public.orders was rewritten", REPAIR)]),
        (
            (NARROW, FILL_NARROW),
            [
                (
                    ("ALTER TABLE orders ALTER total TYPE int USING total + 1",),
                    "public.orders was rewritten",
                    REFRESH,
                ),
                (
                    ("ALTER TABLE orders ADD more float DEFAULT random()",),
                    "public.orders was rewritten",
                    REFRESH,
                ),
            ],
        ),
    ],
)
def test_what_is_in_no_log_stops_a_run(
    make: Make, table: tuple[str, ...], events: list[tuple[tuple[str, ...], str, bool]]
) -> None:
    project, place = loaded(make, *table)
    for number, (event, said, way) in enumerate(events, 5000):
        place.source.execute(*event)
        place.source.execute(f"INSERT INTO orders VALUES ({number}, 5)")
        assert [said in one for one in obstacles(project)] == [True, True]
        with pytest.raises(ChangesLost, match=said) as raised:
            project.run("orders")
        assert "tidegate run orders --full-refresh" in (raised.value.hint or "")
        assert "tidegate verify orders --repair" in (raised.value.hint or "")
        # What is in the log is loaded all the same, and the rest stays as it is.
        assert (number,) in rows(place.target, "raw.orders", "id")
        with pytest.raises(ChangesLost, match=said):
            project.run("orders")

        if way is REFRESH:
            project.run("orders", full_refresh=True)
        else:
            project.verify("orders", repair=True)
        assert is_equal(place)
        place.source.execute(f"UPDATE orders SET id = id + 1000 WHERE id = {number}")
        project.run("orders")
        assert is_equal(place)
    assert obstacles(project) == []


def test_a_partition_that_came_with_rows_and_went_again_stops_runs_until_a_repair(
    make: Make,
) -> None:
    project, place = loaded(make, *PARTS)
    place.source.execute(
        MADE.format("late"),
        "INSERT INTO late SELECT i, i FROM generate_series(20, 29) i",
        ATTACH.format("late", 20, 30),
        "UPDATE orders SET note = 'y' WHERE day >= 20",
    )
    with pytest.raises(ChangesLost, match="late was attached"):
        project.run("orders")
    place.source.execute(DETACH.format("late"))
    for _ in range(2):
        with pytest.raises(ChangesLost, match="late was detached or dropped"):
            project.run("orders")
    project.verify("orders", repair=True)
    assert is_equal(place)
    project.run("orders")
    assert obstacles(project) == []


def test_a_partition_that_came_and_went_between_two_runs_stops_runs_until_a_repair(
    make: Make,
) -> None:
    project, place = loaded(make, *PARTS)
    place.source.execute(
        "CREATE TABLE late PARTITION OF orders FOR VALUES FROM (20) TO (30)",
        "INSERT INTO orders VALUES (20, 20)",
        DETACH.format("late"),
    )
    for said in ("late was attached and is gone", "late was detached or dropped"):
        with pytest.raises(ChangesLost, match=said):
            project.run("orders")
    project.verify("orders", repair=True)
    assert is_equal(place)
    # What the log has of it once more, for a reader that is behind, says nothing new.
    place.source.execute("UPDATE orders SET note = 'z' WHERE day = 1")
    project.run("orders")
    assert is_equal(place)
    assert obstacles(project) == []


def test_a_repair_that_finds_nothing_lets_runs_go_on(make: Make) -> None:
    project, place = loaded(make, *PARTS)
    place.source.execute("DELETE FROM orders WHERE day >= 10")
    project.run("orders")
    place.source.execute("DROP TABLE two")
    with pytest.raises(ChangesLost, match="two was detached or dropped"):
        project.run("orders")
    project.verify("orders", repair=True)
    project.run("orders")
    assert obstacles(project) == []


@pytest.mark.parametrize(
    ("table", "events"),
    [
        (
            (ORDERS, FILL),
            [("VACUUM FULL orders", "CLUSTER orders USING orders_pkey"), ("TRUNCATE orders", FILL)],
        ),
        (
            (NARROW, FILL_NARROW, "ALTER TABLE orders ADD more int DEFAULT 7"),
            [("VACUUM FULL orders",), ("ALTER TABLE orders ALTER total SET NOT NULL",)],
        ),
        (
            PARTS,
            [
                ("VACUUM FULL one", "VACUUM FULL two", "VACUUM FULL empty"),
                ("TRUNCATE orders", "INSERT INTO orders VALUES (1, 1), (11, 11)"),
                ("DROP TABLE empty",),
                (together("SAVEPOINT s", "TRUNCATE orders"),),
                (
                    MADE.format("late"),
                    ATTACH.format("late", 20, 30),
                ),
                ("INSERT INTO orders VALUES (20, 20)",),
                (
                    "CREATE TABLE deep PARTITION OF orders FOR VALUES FROM (40) TO (50)"
                    " PARTITION BY RANGE (day)",
                    "CREATE TABLE deeper PARTITION OF deep FOR VALUES FROM (40) TO (50)",
                    "INSERT INTO orders VALUES (41, 41)",
                ),
            ],
        ),
        (
            (
                PARTS[0].replace("int", "int DEFAULT 1").replace("text", "text DEFAULT 'x'"),
                *PARTS[1:],
            ),
            [
                (
                    together(
                        "INSERT INTO orders VALUES (30, 3)",
                        "CREATE TABLE more PARTITION OF orders FOR VALUES FROM (30) TO (40)",
                        "INSERT INTO orders VALUES (31, 31)",
                    ),
                )
            ],
        ),
    ],
)
def test_what_is_in_the_log_or_changes_nothing_goes_on(
    make: Make, table: tuple[str, ...], events: list[tuple[str, ...]]
) -> None:
    project, place = loaded(make, *table)
    for event in events:
        with place.source.connect() as session:
            for statement in event:
                session.execute(statement)  # type: ignore[call-overload]
        assert obstacles(project) == []
        project.run("orders")
        assert is_equal(place)


DEFERRED = "CREATE TABLE orders (id int, pos int, PRIMARY KEY ({}) DEFERRABLE)"
MOVE = "UPDATE orders SET pos = pos + 1"
FIVE = "INSERT INTO orders SELECT i, i FROM generate_series(1, 5) i"
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"


@pytest.mark.parametrize(
    ("table", "said", "way_on"),
    [
        (
            (DEFERRED.format("pos"),),
            "constraint orders_pkey is DEFERRABLE",
            "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey,"
            " ADD CONSTRAINT orders_pkey PRIMARY KEY (pos)",
        ),
        (
            ("CREATE TABLE orders (id int NOT NULL UNIQUE, pos int PRIMARY KEY DEFERRABLE)",),
            "constraint orders_pkey is DEFERRABLE",
            'key = ["id"]',
        ),
        (
            ("CREATE TABLE orders (id int, pos int)",),
            "no unique index proves",
            "CREATE UNIQUE INDEX ON public.orders (pos)",
        ),
        (
            ("CREATE TABLE orders (id int, pos int UNIQUE)",),
            "column pos may be NULL",
            "ALTER TABLE public.orders ALTER COLUMN pos SET NOT NULL",
        ),
    ],
)
def test_a_key_that_two_rows_may_share_for_a_moment_is_refused(
    make: Make, table: tuple[str, ...], said: str, way_on: str
) -> None:
    project, place = make(orders_sync(key=["pos"]), databases=2)
    place.source.execute(*table, FULL, FIVE)
    refusal = plan_project(project.context, [project.syncs["orders"]]).refusals[0]
    assert said in refusal.message
    with pytest.raises(SourceError, match=said) as raised:
        project.run("orders")
    assert way_on in (raised.value.hint or "")


def test_a_key_that_becomes_deferrable_is_refused_and_then_never_folded(make: Make) -> None:
    project, place = loaded(make, "CREATE TABLE orders (id int, pos int PRIMARY KEY)", FIVE)
    drop = "ALTER TABLE orders DROP CONSTRAINT orders_pkey"
    place.source.execute(
        FULL, f"{drop}, ADD CONSTRAINT orders_pkey PRIMARY KEY (pos) DEFERRABLE", MOVE
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


def test_a_table_that_others_inherit_from_is_refused(make: Make) -> None:
    project, place = make(orders_sync(), databases=2)
    place.source.execute(ORDERS, "CREATE TABLE child () INHERITS (orders)")
    with pytest.raises(SourceError, match=r"public\.child inherits from public\.orders"):
        project.run("orders")
