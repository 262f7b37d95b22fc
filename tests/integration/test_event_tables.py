"""The tables of events and their months: made once, by whoever comes first, as they are needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as pg

from acceptance.processes import until
from integration.conftest import Database, MakePlace
from integration.event_queues import field, small_events, small_model
from tidegate.core.errors import DeclarationError
from tidegate.events.model import FieldType
from tidegate.events.provision import provision
from tidegate.events.reader import EventLimits, EventReader, RawEvent
from tidegate.events.tables import ensure_tables
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, connect

NOW = datetime.now(UTC)
YEAR = 366 * 86_400.0
TABLES = (
    "SELECT table_schema || '.' || table_name FROM information_schema.tables"
    " WHERE table_schema IN ('public', 'warehouse', 'analytics', 'tidegate') ORDER BY 1"
)
PARTS = (
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'warehouse.fact_events'::regclass AND NOT i.inhdetachpending ORDER BY 1"
)
BOUNDS = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = '{}'::regclass"
FACT = "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page) VALUES ('{}', {}, 'home')"


@pytest.fixture
def session(database: Database) -> Iterator[Connection]:
    with connect(database.conninfo, name="test") as connection:
        yield connection


def at_once(*work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def test_everything_is_made_once_and_follows_the_model(
    session: Connection, database: Database
) -> None:
    made: list[str] = []

    def make() -> None:
        with connect(database.conninfo, name="test") as one:
            made.extend(ensure_tables(one, small_events()))

    at_once(*[make] * 10)
    assert len(made) == len(set(made)) > 8
    assert {"public.raw_events", "warehouse.fact_events", "schema analytics"} <= set(made)
    assert [row[0] for row in database.execute(TABLES)] == [
        "analytics.mv_refresh_log",
        "public.raw_events",
        "tidegate.event_batches",
        "tidegate.event_changes",
        "warehouse.dim_places",
        "warehouse.dim_users",
        "warehouse.fact_events",
    ]
    assert database.execute("SELECT id, changes FROM tidegate.event_changes") == [(1, 0)]
    assert ensure_tables(session, small_events()) == []

    # What is of another type, key or partitioning than the model says is refused by its name.
    model = small_model()
    columns = tuple(
        replace(one, type=FieldType.BIGINT) if one.name == "page" else one for one in model.columns
    )
    users, places = model.dimensions
    keyed = replace(users, key=(field("account", "$.user.id"),))
    seen = field("seen_at", "$.seen", FieldType.TIMESTAMPTZ, required=True)
    for changes, said in (
        ({"columns": columns}, r"fact_events.page is text; the model says bigint"),
        ({"dimensions": (keyed, places)}, r"key of warehouse.dim_users is \(user_id\)"),
        (
            {"columns": (*model.columns, seen), "partition_column": "seen_at"},
            "partitioned by occurred_at",
        ),
    ):
        with pytest.raises(DeclarationError, match=said):
            ensure_tables(session, small_events(small_model(**changes)))

    # A column that the model gains is added empty, and one that it loses may be.
    november = "'2026-11-01Z'"
    database.execute(
        "SELECT warehouse.create_monthly_partition('2026-11-17')", FACT.format("a", november)
    )
    occurred, _, cost = model.columns
    gained = small_model(columns=(occurred, cost, field("kind", "$.kind", required=True)))
    made = ensure_tables(session, small_events(gained))
    assert made == ["warehouse.fact_events.kind", "warehouse.fact_events.page may be empty"]
    database.execute(FACT.format("b", november).replace("page", "kind"))
    assert database.execute(
        "SELECT page, kind FROM warehouse.fact_events_2026_11 ORDER BY page"
    ) == [("home", None), (None, "home")]
    assert ensure_tables(session, small_events(gained)) == []

    # A column of the user's own that must be filled is refused and kept.
    database.execute("ALTER TABLE raw_events ADD tenant text NOT NULL")
    with pytest.raises(DeclarationError, match=r"public.raw_events.tenant is NOT NULL"):
        ensure_tables(session, small_events(gained))
    database.execute("ALTER TABLE raw_events ALTER tenant SET DEFAULT 'us'")
    assert ensure_tables(session, small_events(gained)) == []

    # Facts that had no transactions get them from now on.
    database.execute("ALTER TABLE warehouse.fact_events DROP COLUMN loaded_in")
    assert ensure_tables(session, small_events(gained)) == ["warehouse.fact_events.loaded_in"]
    database.execute(FACT.format("c", november).replace("page", "kind"))
    loaded = "SELECT loaded_in IS NOT NULL FROM warehouse.fact_events WHERE event_hash = 'c'"
    assert database.value(loaded)


def test_a_table_of_another_making_is_refused_or_gets_what_it_lacks_and_names_may_be_odd(
    session: Connection, database: Database
) -> None:
    database.execute("CREATE TABLE public.raw_events (id uuid PRIMARY KEY, payload jsonb)")
    with pytest.raises(DeclarationError, match=r"public.raw_events is there already.*no body"):
        ensure_tables(session, small_events())
    assert database.value("SELECT to_regnamespace('warehouse')") is None, "nothing is made"
    database.execute(
        "DROP TABLE raw_events",
        "CREATE SCHEMA analytics",
        "CREATE TABLE analytics.mv_refresh_log"
        " (mv_name text PRIMARY KEY, refreshed_at timestamptz NOT NULL)",
    )
    made = ensure_tables(session, small_events())
    assert "analytics.mv_refresh_log.error" in made
    assert "analytics.mv_refresh_log.refreshed_at may be empty" in made
    assert ensure_tables(session, small_events()) == []

    model = small_model()
    odd = small_model(
        facts=replace(model.facts, schema='Ware "house" 100%s', name="Fact%s Events"),
        columns=(*model.columns, field("Order {by} %s", "$.o")),
    )
    events = small_events(odd, raw_table='"Raw %s".events')
    assert ensure_tables(session, events)
    assert ensure_tables(session, events) == []
    odd_month = """SELECT "Ware ""house"" 100%s".create_monthly_partition('2026-10-31')"""
    assert database.value(odd_month)


def test_months_are_made_by_any_number_of_sessions_while_readers_and_writers_go_on(
    session: Connection, database: Database
) -> None:
    ensure_tables(session, small_events())
    with pytest.raises(pg.CheckViolation, match="no partition"):
        database.execute(FACT.format("a", "'2026-10-31Z'"))
    database.execute(
        "SET TimeZone = 'Pacific/Auckland'",
        "SELECT warehouse.create_monthly_partition('2026-10-31')",
    )
    bounds = database.value(BOUNDS.format("warehouse.fact_events_2026_10"))
    assert "'2026-10-01 00:00:00+00') TO ('2026-11-01 00:00:00+00')" in bounds, "a month of UTC"
    # An open reader and an open writer: neither waits, nor is waited for.
    with database.connect() as reader, database.connect() as writer:
        reader.execute("BEGIN; SELECT count(*) FROM warehouse.fact_events")
        writer.execute("BEGIN")
        writer.execute(FACT.format("a", "'2026-10-31T23:59:59.999999Z'"))
        results: list[bool] = []

        def work(months: range) -> None:
            with database.connect() as one, one.transaction():
                one.execute("SET LOCAL lock_timeout = '20s'")
                for number in months:
                    ((is_new,),) = one.execute(
                        "SELECT warehouse.create_monthly_partition(make_date(2027, %s, 17))",
                        (number,),
                    ).fetchall()
                    results.append(is_new)

        at_once(*(partial(work, one) for one in [range(1, 13), range(12, 0, -1)] * 3))
        reader.execute("SELECT count(*) FROM warehouse.fact_events")
        writer.execute("COMMIT")
    assert (len(results), results.count(True)) == (72, 12)
    assert len(database.execute(PARTS)) == 13
    bounds = database.value(BOUNDS.format("warehouse.fact_events_2027_12"))
    assert "'2027-12-01 00:00:00+00') TO ('2028-01-01 00:00:00+00')" in bounds


def month(ahead: int) -> date:
    number = NOW.year * 12 + NOW.month - 1 + ahead
    return date(number // 12, number % 12 + 1, 1)


def part(one: date) -> str:
    return f"fact_events_{one:%Y_%m}"


@pytest.fixture
def context(make_place: MakePlace) -> Iterator[Context]:
    with make_place().open() as project:
        yield project.context


@pytest.fixture
def base(context: Context) -> Database:
    return Database(context.databases.conninfo("warehouse"))


@pytest.fixture
def warehouse(context: Context) -> Iterator[Connection]:
    with context.databases.connect("warehouse") as connection:
        ensure_tables(connection, small_events())
        yield connection


def parts(base: Database) -> list[str]:
    return [row[0] for row in base.execute(PARTS)]


def put(base: Database, *bodies: str, received: datetime = NOW) -> None:
    with base.connect() as connection:
        for body in bodies:
            connection.execute(
                "INSERT INTO raw_events (id, body, received_at) VALUES (%s, %s, %s)",
                (uuid4(), body, received),
            )


def event(at: object, **more: Any) -> str:
    return json.dumps({"at": at, "page": "home", **more})


def test_waiting_events_get_their_months_and_absurd_ones_none(
    context: Context, warehouse: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0)
    received = datetime(2026, 11, 15, tzinfo=UTC)
    # One that failed needs no month.
    put(base, event("2026-05-01T00:00:00Z"), received=received)
    base.execute("UPDATE raw_events SET status = 'failed'")
    assert provision(context, events, warehouse).made == [month(0)]
    put(
        base,
        event("2026-02-28T23:59:59.9999999Z"),
        event("2025-12-31T23:30:00-01:00"),
        event("2025-07-01 00:30 +0100"),
        '{"at": "2024-05-05T00:00:00Z", "page": "a\\u0000b"}',
        '{"at": "2024-04-05T00:00:00Z", "other": "\\ud800 \\\\u0000"}',
        "",
        "not json",
        "[" * 50_000,
        "\\x00\\xff",
        event("0001-01-01T00:00:00Z"),
        event("9999-12-31T23:59:59Z"),
        event("2030-01-01T00:00:00"),
        event("now"),
        event("infinity"),
        event("2026-02-30T00:00:00Z"),
        event(20260101),
        event(None),
        event("2023-01-01T00:00:00Z", page="x" * 300_000),
        received=received,
    )
    needed = {(2026, 2), (2026, 1), (2025, 6), (2024, 5), (2024, 4)}
    made = provision(context, events, warehouse).made
    assert {(one.year, one.month) for one in made} == needed - {(NOW.year, NOW.month)}


@pytest.fixture(scope="module")
def moments(server: Any, kept_databases: Any) -> Iterator[psycopg.Connection[Any]]:
    name = kept_databases.make("moments")
    with connect(server.conninfo(name), name="test") as connection:
        ensure_tables(connection, small_events())
        yield connection
    kept_databases.give_back(name)


PIECES = st.sampled_from(
    ["2026-11-30", "2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31", "T", " ", "t", "23:59",
     "24:00", "00:00:60", "23:59:59", ".9999999", ".1", "Z", "z", "+01:00", "-2330", "+14", " ",
     "-23:59", "+24", "", "\u0661", "now"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.lists(PIECES, max_size=6).map("".join),
        st.tuples(
            st.sampled_from(["2026-11-30", "2024-02-29", "2023-02-29", "2026-12-31"]),
            st.sampled_from(["T", " ", "t", ""]),
            st.sampled_from(["23:59", "24:00", "23:59:60", "00:00:00", "23:59:59"]),
            st.sampled_from(["", ".9999999", ".5", "."]),
            st.sampled_from(["", " "]),
            st.sampled_from(["Z", "z", "+01:00", "-2330", "+14", "-23:59", "+24", ""]),
        ).map("".join),
    )
)
def test_the_database_reads_a_moment_exactly_as_the_second_phase_does(
    moments: psycopg.Connection[Any], text: str
) -> None:
    body = event(text)
    limits = EventLimits(1_000_000, 10_000 * YEAR, 10_000 * YEAR)
    read = EventReader(small_model(), limits).read(RawEvent(uuid4(), body, NOW))
    row = moments.execute("SELECT tidegate.event_moment(%s, '{at}')", (body,)).fetchone()
    assert row is not None
    assert row[0] == (None if read.error else read.values[0])


@contextmanager
def traced(session: Connection, path: Path) -> Iterator[None]:
    """All that goes over the wire, message by message."""
    with path.open("w") as trace:
        session.pgconn.trace(trace.fileno())
        try:
            yield
        finally:
            session.pgconn.untrace()


def test_the_next_months_are_made_once_by_any_number_and_then_in_five_round_trips(
    context: Context, warehouse: Connection, base: Database, tmp_path: Path
) -> None:
    events = small_events(months_ahead=6, keep_months=3)
    made: list[date] = []

    def work() -> None:
        with context.databases.connect("warehouse") as connection:
            made.extend(provision(context, events, connection).made)

    at_once(*[work] * 10)
    assert sorted(made) == [month(ahead) for ahead in range(7)]
    assert parts(base) == [part(one) for one in sorted(made)]
    put(base, event(NOW.isoformat()))
    provision(context, events, warehouse)
    trace = tmp_path / "trace"
    with traced(warehouse, trace):
        done = provision(context, events, warehouse)
    assert (done.made, done.tables) == ([], [])
    # Each of them ends with the server being ready for the next.
    assert 0 < trace.read_text().count("ReadyForQuery") <= 5


def old(base: Database, *months: date) -> None:
    for one in months:
        create = f"SELECT warehouse.create_monthly_partition('{one}')"
        base.execute(create, FACT.format("a", f"'{one}T00:00:00Z'"))


def test_months_that_are_kept_no_more_are_detached_with_their_rows_and_none_comes_back(
    context: Context, warehouse: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0, keep_months=3)
    old(base, month(-5), month(-3), month(-2))
    done = provision(context, events, warehouse)
    assert done.detached == [part(month(-5)), part(month(-3))]
    assert parts(base) == [part(month(-2)), part(month(0))]
    assert base.value(f"SELECT count(*) FROM warehouse.{part(month(-5))}") == 1
    again = provision(context, events, warehouse)
    assert (again.made, again.detached) == ([], [])

    # No event brings one back, but who asks for it gets its rows.
    for ahead in (-3, -1):
        put(base, event(datetime.combine(month(ahead), datetime.min.time(), UTC).isoformat()))
    assert provision(context, events, warehouse).made == [month(-1)]
    asked = provision(context, events, warehouse, months=[month(-3)])
    assert (asked.made, asked.detached) == ([month(-3)], [])
    assert base.value("SELECT count(*) FROM warehouse.fact_events") == 2
    assert events.first_kept(NOW) == month(-2)


def test_readers_before_and_while_a_month_goes_are_not_disturbed(
    context: Context, warehouse: Connection, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = small_events(months_ahead=0, keep_months=3)
    old(base, month(-5), month(-4), month(0))
    count = "SELECT count(*) FROM warehouse.fact_events"
    with monkeypatch.context() as patched, base.connect() as reader, reader.transaction():
        patched.setattr("tidegate.events.provision._DETACH_TIMEOUT", "200ms")
        reader.execute(count)
        assert provision(context, events, warehouse).detached == []
        base.execute("SET lock_timeout = '1s'", count)
        reader.execute(count)
    # What was half done is finished.
    provision(context, events, warehouse)
    provision(context, events, warehouse)
    assert parts(base) == [part(month(0))]
    assert base.value(f"SELECT count(*) FROM warehouse.{part(month(-5))}") == 1

    old(base, month(-6))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = "
    with base.connect() as reader:
        reader.execute(f"BEGIN; {count}")
        going = threading.Thread(target=lambda: provision(context, events, warehouse))
        going.start()
        until(lambda: base.value(f"{waits}{warehouse.info.backend_pid}") == 1, "the detach to wait")
        base.execute("SET lock_timeout = '300ms'", count, FACT.format("b", "now()"))
        reader.execute("COMMIT")
        going.join()
    assert parts(base) == [part(month(0))]
