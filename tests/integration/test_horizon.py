"""The horizon: rows of transactions that are still open are never passed over.

On a standby nothing counts as settled that was not replayed, however late it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from acceptance.processes import until
from conftest import MakeDatabase
from integration.conftest import Database, MakePlace
from integration.orders import CREATE, ORDERS, plan_one
from integration.standbys import own_server, standby_of
from tidegate.admin.status import read_status
from tidegate.core.relation import Relation
from tidegate.core.watermark import CursorType, Guarantee, Horizon
from tidegate.load.sources.horizon import CursorColumn, read_horizon
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

Servers = tuple[EmbeddedServer, EmbeddedServer]


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

    def read_until(self, count: int) -> None:
        def enough() -> bool:
            if len(self.loaded) < count:
                self.read()
            return len(self.loaded) >= count

        until(enough, f"{count} rows")


def orders(database: Database, cursor: str) -> None:
    database.execute(f"CREATE TABLE orders (id int PRIMARY KEY, c {cursor} NOT NULL)")


@pytest.mark.parametrize("kind", ["timestamptz", "timestamptz(3)", "timestamp(0)"])
def test_rows_stamped_by_an_open_transaction_are_never_skipped(
    database: Database, kind: str
) -> None:
    orders(database, f"{kind} DEFAULT now()")
    reader = Reader(database)
    with database.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders (id) VALUES (1)")
        for number in range(2, 4):
            database.execute(f"INSERT INTO orders (id) VALUES ({number})")
            assert reader.read() == []
        assert reader.horizon().held_by is not None
        late.execute("INSERT INTO orders (id) VALUES (9)")
        late.execute("COMMIT")
    reader.read_until(4)
    assert sorted(reader.loaded) == [1, 2, 3, 9]


def test_whoever_holds_back_is_named_and_rows_below_it_are_read_meanwhile(
    database: Database, make_database: MakeDatabase
) -> None:
    orders(database, "timestamptz DEFAULT now()")
    database.execute("INSERT INTO orders (id) VALUES (1)")
    reader = Reader(database)
    with psycopg.connect(make_database("other")) as other:
        other.execute("SELECT 1")
        assert reader.horizon().held_by is None, "transactions of another database do not matter"
    with database.connect(application_name="nightly report") as late:
        late.execute("BEGIN")
        started = late.execute("SELECT now()").fetchone()
        held = reader.horizon().held_by
        assert held is not None
        assert started is not None
        assert held.since == started[0]
        assert f"process {late.info.backend_pid} of {late.info.user} (nightly report)" in str(held)
        assert "idle in transaction" in str(held)
        assert "open since" in str(held)
        # It has not written yet.
        database.execute("INSERT INTO orders (id) VALUES (2)")
        assert reader.read() == [1]
        late.execute("INSERT INTO orders (id) VALUES (3)")
        late.execute("COMMIT")
    reader.read_until(3)
    assert sorted(reader.loaded) == [1, 2, 3]


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
    reader.read_until(2)
    assert sorted(reader.loaded) == [1, 2]


def wait_for_lock(database: Database, number: int) -> None:
    waiting = (
        f"SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = {number}"
        " AND NOT granted"
    )
    until(lambda: bool(database.value(waiting)), "somebody who waits for an advisory lock")


def test_a_plain_timestamp_is_read_in_the_zone_that_is_declared(database: Database) -> None:
    orders(database, "timestamp DEFAULT (now() AT TIME ZONE 'UTC')")
    utc = datetime.fromisoformat(str(Reader(database, timezone="UTC").horizon().high))
    tokyo = datetime.fromisoformat(str(Reader(database, timezone="Asia/Tokyo").horizon().high))
    assert 8.9 < (tokyo - utc).total_seconds() / 3600 < 9.1
    assert Reader(database, timezone="UTC").horizon().guarantee is Guarantee.EXACT
    assert Reader(database, timezone="Europe/Berlin").horizon().guarantee is Guarantee.BOUNDED


def test_a_date_stops_before_today_or_the_day_an_open_transaction_began(
    database: Database,
) -> None:
    orders(database, "date")
    today = database.value("SELECT (now() AT TIME ZONE 'UTC')::date")
    before = Reader(database, timezone="UTC").horizon().high
    covered = Reader(database, timezone="UTC", lookback_days=True).horizon().high
    assert (today - datetime.fromisoformat(str(before)).date()).days == 1
    assert covered == str(today)
    with database.connect() as late:
        late.execute("BEGIN")
        start = late.execute("SELECT (now() AT TIME ZONE 'UTC')::date - 1").fetchone()
        assert start is not None
        assert Reader(database, timezone="UTC").horizon().high == str(start[0])


def test_sequence_values_of_an_open_transaction_are_never_skipped(database: Database) -> None:
    database.execute("CREATE SEQUENCE s")
    orders(database, "smallint DEFAULT nextval('s')")
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

        # A value that was drawn before it is written is not skipped either.
        late.execute("BEGIN")
        drawn = late.execute("SELECT nextval('s')").fetchone()
        assert drawn is not None
        database.execute("INSERT INTO orders (id) VALUES (6)")
        assert reader.read() == []
        late.execute("INSERT INTO orders VALUES (5, %s)", drawn)
        late.execute("COMMIT")
    assert reader.read() == [5, 6]


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


# --- servers of their own

SETTLE = 1.0
PREPARES = {"max_prepared_transactions": "5"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A primary, and a standby that asks for news every second while there are none."""
    folder = tmp_path_factory.mktemp("standby")
    often = {**PREPARES, "wal_receiver_timeout": "2s"}
    with (
        own_server(folder / "primary", PREPARES) as primary,
        standby_of(primary, folder / "standby", often) as standby,
    ):
        yield primary, standby


@pytest.fixture
def pair(servers: Servers) -> Iterator[tuple[Database, Database]]:
    """One database, on the primary and on the standby."""
    primary, standby = servers
    name = f"db_{uuid4().hex[:8]}"
    primary.ensure_database(name)
    written = Database(primary.conninfo(name))
    catch_up(written, Database(standby.conninfo("postgres")))
    yield written, Database(standby.conninfo(name))
    mine = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (gid,) in written.execute(mine):
        written.execute(f"ROLLBACK PREPARED '{gid}'")


def catch_up(primary: Database, standby: Database, what: str = "replay") -> None:
    """Wait until the standby has got or replayed all that is written by now."""
    end = primary.value("SELECT pg_current_wal_flush_lsn()")
    reached = f"SELECT pg_last_wal_{what}_lsn() >= '{end}'"
    until(lambda: bool(standby.value(reached)), f"{what} by the standby")


@contextmanager
def paused(standby: Database) -> Iterator[None]:
    standby.execute("SELECT pg_wal_replay_pause()")
    state = "SELECT pg_get_wal_replay_pause_state()"
    until(lambda: standby.value(state) == "paused", "a standby that pauses")
    try:
        yield
    finally:
        standby.execute("SELECT pg_wal_replay_resume()")


def prepare(database: Database, table: str) -> None:
    """Leave a prepared transaction that has written one row."""
    database.execute("BEGIN", f"INSERT INTO {table} (id) VALUES (1)", "PREPARE TRANSACTION 'one'")


@pytest.mark.parametrize("kind", ["timestamptz DEFAULT now()", "bigint DEFAULT 5"])
def test_a_prepared_transaction_that_wrote_the_table_stops_everything(
    pair: tuple[Database, Database], kind: str
) -> None:
    primary, _ = pair
    orders(primary, kind)
    prepare(primary, "orders")
    primary.execute("INSERT INTO orders (id) VALUES (2)")
    reader = Reader(primary)
    found = reader.horizon()
    assert found.high is None
    assert "prepared transaction one" in str(found.held_by)
    assert reader.read() == []
    primary.execute("COMMIT PREPARED 'one'")
    reader.read_until(2)
    assert sorted(reader.loaded) == [1, 2]


def test_which_prepared_transactions_matter(pair: tuple[Database, Database]) -> None:
    primary, _ = pair
    primary.execute("CREATE TABLE other (id int)")
    prepare(primary, "other")
    orders(primary, "timestamptz DEFAULT now()")
    primary.execute("INSERT INTO orders (id) VALUES (1)")
    assert Reader(primary).read() == [1], "it is on another table"
    primary.execute("DROP TABLE orders", "CREATE VIEW orders AS SELECT 1 AS id, now() AS c")
    assert Reader(primary).horizon().high is None, "behind a view any of them may matter"
    primary.execute("ROLLBACK PREPARED 'one'", "DROP VIEW orders")

    stamped = "(id int, c timestamptz NOT NULL DEFAULT now())"
    for make in (
        f"CREATE TABLE orders {stamped} PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF orders FOR VALUES FROM (1) TO (10)",
        f"CREATE TABLE orders {stamped}; CREATE TABLE between () INHERITS (orders);"
        "CREATE TABLE part () INHERITS (between)",
    ):
        primary.execute("DROP TABLE IF EXISTS orders CASCADE", make)
        assert Reader(primary).horizon().high is not None
        prepare(primary, "part")
        assert Reader(primary).horizon().high is None, "it is on a part"
        primary.execute("ROLLBACK PREPARED 'one'")


@pytest.mark.parametrize(
    "kind", ["timestamptz DEFAULT now()", "bigint GENERATED BY DEFAULT AS IDENTITY"]
)
def test_a_commit_that_is_replayed_late_is_not_skipped(
    pair: tuple[Database, Database], kind: str
) -> None:
    primary, standby = pair
    primary.execute(f"CREATE TABLE orders (id int PRIMARY KEY, c {kind} NOT NULL)")
    reader = Reader(standby, settle_seconds=SETTLE)
    with primary.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders (id) VALUES (1)")
        primary.execute("INSERT INTO orders (id) VALUES (2)")
        catch_up(primary, standby)
        assert reader.read() == []
        with paused(standby):
            # It was open for less than settle; the standby does not know yet that it has ended.
            late.execute("COMMIT")
            catch_up(primary, standby, "receive")
            time.sleep(SETTLE + 0.1)
            found = reader.horizon()
            assert reader.read() == []
            assert (found.guarantee, found.settles) == (Guarantee.SETTLED, True)
            assert "s behind its primary" in found.because
            assert "which has replayed up to" in str(found.held_by)
            assert found.lag_seconds is not None
            assert found.lag_seconds > SETTLE
            assert reader.horizon(may_wait=True).high in (None, found.high)
    # Nothing more is committed: the primary's messages say that time goes on.
    reader.read_until(2)
    assert sorted(reader.loaded) == [1, 2]
    assert reader.horizon().held_by is None
    assert reader.horizon().lag_seconds == 0


def test_plan_and_status_say_how_far_the_standby_is_behind(
    pair: tuple[Database, Database], make_place: MakePlace
) -> None:
    primary, standby = pair
    place = make_place({**ORDERS, "settle": "1 s", "lookback": "1 minute"})
    primary.execute(*CREATE, "INSERT INTO orders VALUES (1, 1)")
    catch_up(primary, standby)
    with Project.open(place.folder, **{"connections.shop": standby.conninfo}) as project:
        before = plan_one(project)
        assert before.guarantee is Guarantee.SETTLED
        assert "the source is a standby and shows no open transactions" in before.because
        with paused(standby):
            primary.execute("INSERT INTO orders VALUES (2, 2)")
            catch_up(primary, standby, "receive")
            time.sleep(1.1)
            planned = plan_one(project)
            (status,) = read_status(project.context, [project.sync("orders")]).syncs
    assert "s behind its primary" in planned.because
    assert [note for note in status.notes if "s behind its primary" in note] == [*status.notes]
