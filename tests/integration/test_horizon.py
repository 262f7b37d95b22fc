"""The horizon: rows of transactions that are still open are never passed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from conftest import FAST, MakeDatabase
from integration.conftest import Database
from tidegate.model.cursor import CursorType, Guarantee
from tidegate.model.horizon import Horizon
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.sources.horizon import CursorColumn, read_horizon


class Memory:
    """Observations as the control database keeps them."""

    def __init__(self) -> None:
        self.seen: list[tuple[datetime, str]] = []

    def record(self, observed_at: datetime, value: str) -> None:
        self.seen.append((observed_at, value))

    def latest_before(self, moment: datetime) -> str | None:
        found = [value for at, value in self.seen if at <= moment]
        return found[-1] if found else None


class Reader:
    """Reads `orders` as a sync does: up to the horizon, remembering how far it got."""

    def __init__(self, database: Database, **options: Any) -> None:
        self.database = database
        self.options = options
        self.memory = Memory()
        self.waited: list[float] = []
        self.watermark: str | None = None
        self.loaded: list[int] = []

    def horizon(self, **options: Any) -> Horizon:
        with connect(self.database.conninfo, name="the source") as session:
            for statement in self.options.get("session", []):
                session.execute(statement)
            table = describe_table(session, Relation("public", "orders"))
            assert table is not None
            column = table.column("c")
            assert column is not None
            kind = CursorType.of(column.wire)
            assert kind is not None
            cursor = CursorColumn(
                table,
                "c",
                kind,
                self.options.get("settle_seconds", 60.0),
                self.options.get("timezone"),
                self.options.get("lookback_days", False),
            )
            options.setdefault("may_wait", False)
            options.setdefault("wait", self.waited.append)
            return read_horizon(session, cursor, self.memory, **options)

    def read(self) -> list[int]:
        """Load what lies between the watermark and the horizon, and move the watermark."""
        horizon = self.horizon()
        if horizon.high is None:
            return []
        kind = self.database.value("SELECT pg_typeof(c)::text FROM orders LIMIT 1")
        low = "true" if self.watermark is None else f"c > '{self.watermark}'::{kind}"
        rows = self.database.execute(
            f"SELECT id, c::text FROM orders WHERE {low} AND c <= '{horizon.high}'::{kind}"
            " ORDER BY c, id"
        )
        if rows:
            self.watermark = rows[-1][1]
            self.loaded += [row[0] for row in rows]
        return [row[0] for row in rows]


def orders(database: Database, cursor: str) -> None:
    database.execute(f"CREATE TABLE orders (id int PRIMARY KEY, c {cursor} NOT NULL)")


TIMES = ["timestamptz", "timestamp", "timestamptz(3)", "timestamp(0)", "timestamptz(0)"]


@pytest.mark.parametrize("kind", TIMES)
def test_rows_stamped_by_an_open_transaction_are_never_skipped(
    database: Database, kind: str
) -> None:
    orders(database, f"{kind} DEFAULT now()")
    reader = Reader(database)
    with database.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders (id) VALUES (1)")
        for number in range(2, 6):
            database.execute(f"INSERT INTO orders (id) VALUES ({number})")
            assert reader.read() == []
        assert reader.horizon().held_by is not None
        late.execute("INSERT INTO orders (id) VALUES (9)")
        late.execute("COMMIT")
    while len(reader.loaded) < 6:
        reader.read()
    assert sorted(reader.loaded) == [1, 2, 3, 4, 5, 9]


def test_a_transaction_that_has_not_written_yet_holds_back_as_well(database: Database) -> None:
    orders(database, "timestamptz DEFAULT now()")
    reader = Reader(database)
    with database.connect() as late:
        late.execute("BEGIN")
        late.execute("SELECT 1")
        database.execute("INSERT INTO orders (id) VALUES (1)")
        assert reader.read() == []
        late.execute("INSERT INTO orders (id) VALUES (2)")
        late.execute("COMMIT")
    while len(reader.loaded) < 2:
        reader.read()
    assert sorted(reader.loaded) == [1, 2]


def test_rows_below_the_oldest_transaction_are_read_meanwhile(database: Database) -> None:
    orders(database, "timestamptz DEFAULT now()")
    database.execute("INSERT INTO orders (id) VALUES (1)")
    with database.connect() as late:
        late.execute("BEGIN")
        database.execute("INSERT INTO orders (id) VALUES (2)")
        assert Reader(database).read() == [1]


def test_the_session_that_holds_back_is_named(database: Database) -> None:
    orders(database, "timestamptz DEFAULT now()")
    assert Reader(database).horizon().held_by is None
    with database.connect(application_name="nightly report") as late:
        late.execute("BEGIN")
        started = late.execute("SELECT now()").fetchone()
        held = Reader(database).horizon().held_by
        assert held is not None
        assert started is not None
        assert held.since == started[0]
        text = str(held)
        assert f"process {late.info.backend_pid} of {late.info.user} (nightly report)" in text
        assert "idle in transaction" in text
        assert "open since" in text


def test_a_procedure_that_commits_keeps_the_time_of_its_call(database: Database) -> None:
    """Its transactions begin anew, and statement_timestamp() stays what it was."""
    orders(database, "timestamptz DEFAULT statement_timestamp()")
    database.execute(
        "CREATE PROCEDURE write() LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock(1); COMMIT;"
        " INSERT INTO orders (id) VALUES (1); PERFORM pg_advisory_lock(2); END$$"
    )
    reader = Reader(database)
    with (
        ThreadPoolExecutor(1) as pool,
        database.connect() as late,
        database.connect() as gate,
    ):
        gate.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
        called = pool.submit(late.execute, "CALL write()")
        wait_for_lock(database, 1)
        database.execute("INSERT INTO orders (id) VALUES (2)")
        gate.execute("SELECT pg_advisory_unlock(1)")
        wait_for_lock(database, 2)
        assert reader.read() == []
        gate.execute("SELECT pg_advisory_unlock(2)")
        called.result()
    while len(reader.loaded) < 2:
        reader.read()
    assert sorted(reader.loaded) == [1, 2]


def wait_for_lock(database: Database, number: int) -> None:
    """Look until somebody waits for an advisory lock."""
    until = time.monotonic() + 60
    while not database.value(
        f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {number}"
        " AND NOT granted"
    ):
        assert time.monotonic() < until


def test_another_database_s_transactions_do_not_matter(
    database: Database, make_database: MakeDatabase
) -> None:
    orders(database, "timestamptz DEFAULT now()")
    with psycopg.connect(make_database("other")) as other:
        other.execute("SELECT 1")
        assert Reader(database).horizon().held_by is None


def test_a_plain_timestamp_is_read_in_the_zone_that_is_declared(database: Database) -> None:
    orders(database, "timestamp DEFAULT (now() AT TIME ZONE 'UTC')")
    utc = datetime.fromisoformat(str(Reader(database, timezone="UTC").horizon().high))
    tokyo = datetime.fromisoformat(str(Reader(database, timezone="Asia/Tokyo").horizon().high))
    assert 8.9 < (tokyo - utc).total_seconds() / 3600 < 9.1
    assert Reader(database, timezone="UTC").horizon().guarantee is Guarantee.EXACT
    assert Reader(database, timezone="Europe/Berlin").horizon().guarantee is Guarantee.BOUNDED


def test_a_date_stops_before_today_unless_a_day_of_lookback_covers_it(database: Database) -> None:
    orders(database, "date")
    today = database.value("SELECT (now() AT TIME ZONE 'UTC')::date")
    before = Reader(database, timezone="UTC").horizon().high
    covered = Reader(database, timezone="UTC", lookback_days=True).horizon().high
    assert (today - datetime.fromisoformat(str(before)).date()).days == 1
    assert covered == str(today)


def test_a_date_stops_before_the_day_an_open_transaction_began(database: Database) -> None:
    orders(database, "date")
    with database.connect() as late:
        late.execute("BEGIN")
        start = late.execute("SELECT (now() AT TIME ZONE 'UTC')::date - 1").fetchone()
        assert start is not None
        assert Reader(database, timezone="UTC").horizon().high == str(start[0])


@pytest.mark.parametrize("kind", ["smallint", "integer", "bigint"])
def test_sequence_values_of_an_open_transaction_are_never_skipped(
    database: Database, kind: str
) -> None:
    orders(database, f"{kind} DEFAULT 0")
    database.execute("CREATE SEQUENCE s", "ALTER TABLE orders ALTER c SET DEFAULT nextval('s')")
    database.execute("INSERT INTO orders (id) VALUES (1), (2)")
    reader = Reader(database)
    assert reader.read() == [1, 2]
    with database.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders (id) VALUES (3)")
        database.execute("INSERT INTO orders (id) VALUES (4)")
        assert reader.read() == []
        held = reader.horizon()
        assert held.high == "2"
        assert held.held_by is not None
        late.execute("COMMIT")
    assert reader.read() == [3, 4]


def test_a_value_drawn_before_it_is_written_is_not_skipped_either(database: Database) -> None:
    orders(database, "bigint DEFAULT 0")
    database.execute("CREATE SEQUENCE s")
    reader = Reader(database)
    with database.connect() as late:
        late.execute("BEGIN")
        drawn = late.execute("SELECT nextval('s')").fetchone()
        assert drawn is not None
        database.execute("INSERT INTO orders VALUES (2, nextval('s'))")
        assert reader.read() == []
        late.execute("INSERT INTO orders VALUES (1, %s)", drawn)
        late.execute("COMMIT")
    assert reader.read() == [1, 2]


def test_an_integer_horizon_waits_for_short_transactions_to_end(database: Database) -> None:
    orders(database, "bigint")
    database.execute("INSERT INTO orders VALUES (1, 1)")
    reader = Reader(database)
    with database.connect() as short:
        short.execute("BEGIN")
        short.execute("INSERT INTO orders VALUES (2, 2)")

        def wait(seconds: float) -> None:
            if seconds > 0.01 and short.info.transaction_status:
                short.execute("COMMIT")

        found = reader.horizon(may_wait=True, wait=wait)
    assert (found.high, found.held_by) == ("1", None)


@contextmanager
def role(database: Database, *grants: str) -> Iterator[str]:
    """A role without rights of its own, for as long as it is needed."""
    name = f"reader_{uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {name}", f"GRANT SELECT ON orders TO {name}")
    for grant in grants:
        database.execute(f"GRANT {grant} TO {name}")
    try:
        yield name
    finally:
        database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_without_the_right_to_see_others_rows_are_read_late(database: Database) -> None:
    orders(database, "timestamptz DEFAULT now()")
    database.execute("INSERT INTO orders (id) VALUES (1)")
    with role(database) as name:
        reader = Reader(database, session=[f"SET ROLE {name}"], settle_seconds=100.0)
        found = reader.horizon()
        assert found.guarantee is Guarantee.SETTLED
        assert "pg_read_all_stats" in found.because
        assert "100 s late (settle)" in found.because
        assert found.held_by is None
        age = database.value(f"SELECT extract(epoch FROM now() - '{found.high}'::timestamptz)")
        assert 99 < age < 110
    with role(database, "pg_read_all_stats") as name:
        reader = Reader(database, session=[f"SET ROLE {name}"])
        assert reader.horizon().guarantee is Guarantee.EXACT


def test_without_that_right_integers_count_once_they_have_settled(database: Database) -> None:
    orders(database, "bigint GENERATED BY DEFAULT AS IDENTITY")
    database.execute("INSERT INTO orders VALUES (1, 1)")
    with role(database) as name:
        reader = Reader(database, session=[f"SET ROLE {name}"], settle_seconds=7.0)
        assert reader.horizon().high is None
        assert reader.horizon(may_wait=True).high == "1"
        assert reader.waited == [7.0]
        settled = Reader(database, session=[f"SET ROLE {name}"], settle_seconds=0.0)
        settled.horizon()
        assert settled.horizon().guarantee is Guarantee.SETTLED


def test_sessions_that_do_not_show_are_not_taken_for_none(database: Database) -> None:
    orders(database, "timestamptz DEFAULT now()")
    with database.connect() as hidden:
        hidden.execute("SET track_activities = off")
        hidden.execute("BEGIN")
        found = Reader(database).horizon()
    assert found.guarantee is Guarantee.SETTLED
    assert "track_activities" in found.because


@pytest.fixture(scope="module")
def preparing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that allows prepared transactions."""
    settings = {**FAST, "max_prepared_transactions": "5"}
    server = EmbeddedServer(tmp_path_factory.mktemp("preparing") / "postgres", settings)
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture
def prepared(preparing: EmbeddedServer) -> Iterator[Database]:
    name = f"db_{uuid4().hex[:8]}"
    preparing.ensure_database(name)
    database = Database(preparing.conninfo(name))
    with ExitStack() as stack:
        for gid in ("one", "two"):
            stack.callback(_forget, database, gid)
        yield database


def _forget(database: Database, gid: str) -> None:
    if database.value(f"SELECT count(*) FROM pg_prepared_xacts WHERE gid = '{gid}'"):
        database.execute(f"ROLLBACK PREPARED '{gid}'")


@pytest.mark.parametrize("kind", ["timestamptz DEFAULT now()", "bigint DEFAULT 5"])
def test_a_prepared_transaction_that_wrote_the_table_stops_everything(
    prepared: Database, kind: str
) -> None:
    orders(prepared, kind)
    with prepared.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders (id) VALUES (1)")
        session.execute("PREPARE TRANSACTION 'one'")
    prepared.execute("INSERT INTO orders (id) VALUES (2)")
    reader = Reader(prepared)
    found = reader.horizon()
    assert found.high is None
    assert "prepared transaction one" in str(found.held_by)
    assert reader.read() == []
    prepared.execute("COMMIT PREPARED 'one'")
    while len(reader.loaded) < 2:
        reader.read()
    assert sorted(reader.loaded) == [1, 2]


def test_a_prepared_transaction_on_another_table_does_not_matter(prepared: Database) -> None:
    orders(prepared, "timestamptz DEFAULT now()")
    prepared.execute("CREATE TABLE other (id int)", "INSERT INTO orders (id) VALUES (1)")
    with prepared.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO other VALUES (1)")
        session.execute("PREPARE TRANSACTION 'two'")
    assert Reader(prepared).read() == [1]


def test_behind_a_view_any_prepared_transaction_may_matter(prepared: Database) -> None:
    prepared.execute("CREATE TABLE other (id int)")
    prepared.execute("CREATE VIEW orders AS SELECT 1 AS id, now() AS c")
    with prepared.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO other VALUES (1)")
        session.execute("PREPARE TRANSACTION 'two'")
    assert Reader(prepared).horizon().high is None


@pytest.mark.parametrize(
    "make",
    [
        (
            "CREATE TABLE orders (id int, c timestamptz NOT NULL) PARTITION BY RANGE (id)",
            "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (1) TO (10)",
        ),
        (
            "CREATE TABLE orders (id int, c timestamptz NOT NULL)",
            "CREATE TABLE between () INHERITS (orders)",
            "CREATE TABLE orders_1 () INHERITS (between)",
        ),
    ],
)
def test_a_prepared_transaction_on_a_part_counts_for_the_whole(
    prepared: Database, make: tuple[str, ...]
) -> None:
    prepared.execute(*make)
    with prepared.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders_1 VALUES (1, now())")
        session.execute("PREPARE TRANSACTION 'one'")
    assert Reader(prepared).horizon().high is None
