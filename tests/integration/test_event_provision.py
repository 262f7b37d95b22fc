"""The first phase: the months that waiting events need, and none that they do not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptance.processes import until
from integration.conftest import Database, MakeProject
from integration.event_models import small_events, small_model
from tidegate.model.event import EventLimits, RawEvent, read_event
from tidegate.pipeline.context import Context
from tidegate.pipeline.event_provision import provision
from tidegate.pipeline.event_tables import ensure_tables
from tidegate.postgres.connect import Connection, connect

NOW = datetime.now(UTC)
YEAR = 366 * 86_400.0
PARTS = (
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'warehouse.fact_events'::regclass AND NOT i.inhdetachpending ORDER BY 1"
)


def month(ahead: int, day: date | None = None) -> date:
    start = day or NOW.date()
    number = start.year * 12 + start.month - 1 + ahead
    return date(number // 12, number % 12 + 1, 1)


def part(one: date) -> str:
    return f"fact_events_{one:%Y_%m}"


@pytest.fixture
def context(make_project: MakeProject) -> Context:
    return make_project()[0].context


@pytest.fixture
def base(context: Context) -> Database:
    return Database(context.databases.conninfo("warehouse"))


@pytest.fixture
def session(context: Context) -> Iterator[Connection]:
    with context.databases.connect("warehouse") as connection:
        yield connection


def put(base: Database, *bodies: str, received: datetime = NOW) -> None:
    with base.connect() as connection:
        for body in bodies:
            connection.execute(
                "INSERT INTO raw_events (id, body, received_at) VALUES (%s, %s, %s)",
                (uuid4(), body, received),
            )


def event(at: object, **more: Any) -> str:
    return json.dumps({"at": at, "page": "home", **more})


def test_the_current_month_and_the_next_ones_are_made_before_anything_needs_them(
    context: Context, session: Connection, base: Database
) -> None:
    done = provision(context, small_events(months_ahead=2), session)
    assert done.made == [month(0), month(1), month(2)]
    assert [row[0] for row in base.execute(PARTS)] == [part(one) for one in done.made]


def test_waiting_events_get_their_months_and_absurd_ones_none(
    context: Context, session: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0)
    ensure_tables(session, events)
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
        received=datetime(2026, 11, 15, tzinfo=UTC),
    )
    done = provision(context, events, session)
    assert set(done.made) - {month(0)} == {
        date(2026, 2, 1),
        date(2026, 1, 1),
        date(2025, 6, 1),
        date(2024, 5, 1),
        date(2024, 4, 1),
    } - {month(0)}


def test_an_event_that_is_done_or_failed_needs_no_month(
    context: Context, session: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0)
    ensure_tables(session, events)
    put(base, event("2026-02-01T00:00:00Z"), received=datetime(2026, 3, 1, tzinfo=UTC))
    base.execute("UPDATE raw_events SET status = 'failed'")
    assert provision(context, events, session).made == [month(0)]


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


@settings(max_examples=600, deadline=None)
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
    read = read_event(small_model(), limits, RawEvent(uuid4(), body, NOW))
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


def test_with_nothing_to_do_it_takes_at_most_five_round_trips(
    context: Context, session: Connection, base: Database, tmp_path: Path
) -> None:
    events = small_events(keep_months=3)
    provision(context, events, session)
    put(base, event(NOW.isoformat()))
    trace = tmp_path / "trace"
    with traced(session, trace):
        done = provision(context, events, session)
    assert not done.made
    assert not done.tables
    # Each of them ends with the server being ready for the next.
    assert 0 < trace.read_text().count("ReadyForQuery") <= 5


def test_ten_at_once_make_each_month_once(context: Context, base: Database) -> None:
    events = small_events(months_ahead=6)
    made: list[date] = []

    def work() -> None:
        with context.databases.connect("warehouse") as connection:
            made.extend(provision(context, events, connection).made)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(made) == [month(ahead) for ahead in range(7)]


def old(base: Database, *months: date) -> None:
    for one in months:
        base.execute(f"SELECT warehouse.create_monthly_partition('{one}')")
        base.execute(
            "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page)"
            f" VALUES ('a', '{one}T00:00:00Z', 'home')"
        )


def test_months_that_are_kept_no_more_are_detached_with_their_rows(
    context: Context, session: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0, keep_months=3)
    ensure_tables(session, events)
    old(base, month(-5), month(-3), month(-2))
    done = provision(context, events, session)
    assert done.detached == [part(month(-5)), part(month(-3))]
    assert [row[0] for row in base.execute(PARTS)] == [part(month(-2)), part(month(0))]
    assert base.value(f"SELECT count(*) FROM warehouse.{part(month(-5))}") == 1
    again = provision(context, events, session)
    assert (again.made, again.detached) == ([], [])


def test_no_event_brings_a_month_back_that_is_kept_no_more_but_who_asks_for_it_gets_its_rows(
    context: Context, session: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0, keep_months=3)
    ensure_tables(session, events)
    old(base, month(-3))
    assert provision(context, events, session).detached == [part(month(-3))]
    for ahead in (-3, -2):
        put(base, event(datetime.combine(month(ahead), datetime.min.time(), UTC).isoformat()))
    assert provision(context, events, session).made == [month(-2)]
    asked = provision(context, events, session, months=[month(-3)])
    assert (asked.made, asked.detached) == ([month(-3)], [])
    assert base.value("SELECT count(*) FROM warehouse.fact_events") == 1
    assert events.first_kept(NOW) == month(-2)


def test_an_open_reader_is_not_disturbed_by_a_month_that_goes(
    context: Context, session: Connection, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipeline.event_provision._DETACH_TIMEOUT", "200ms")
    events = small_events(months_ahead=0, keep_months=3)
    ensure_tables(session, events)
    old(base, month(-5), month(-4), month(0))
    with base.connect() as reader, reader.transaction():
        reader.execute("SELECT count(*) FROM warehouse.fact_events")
        assert provision(context, events, session).detached == []
        # One that comes while it goes is not kept waiting.
        base.execute("SET lock_timeout = '1s'", "SELECT count(*) FROM warehouse.fact_events")
        reader.execute("SELECT count(*) FROM warehouse.fact_events")
    # What was half done is finished.
    provision(context, events, session)
    provision(context, events, session)
    assert [row[0] for row in base.execute(PARTS)] == [part(month(0))]
    assert base.value(f"SELECT count(*) FROM warehouse.{part(month(-5))}") == 1


def test_a_reader_that_comes_while_a_month_goes_is_not_kept_waiting(
    context: Context, session: Connection, base: Database
) -> None:
    events = small_events(months_ahead=0, keep_months=3)
    ensure_tables(session, events)
    old(base, month(-5), month(0))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = "
    with base.connect() as reader:
        reader.execute("BEGIN; SELECT count(*) FROM warehouse.fact_events")
        going = threading.Thread(target=lambda: provision(context, events, session))
        going.start()
        until(lambda: base.value(f"{waits}{session.info.backend_pid}") == 1, "the detach to wait")
        base.execute("SET lock_timeout = '300ms'", "SELECT count(*) FROM warehouse.fact_events")
        base.execute(
            "SET lock_timeout = '300ms'",
            "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page)"
            " VALUES ('b', now(), 'home')",
        )
        reader.execute("COMMIT")
        going.join()
    assert [row[0] for row in base.execute(PARTS)] == [part(month(0))]
