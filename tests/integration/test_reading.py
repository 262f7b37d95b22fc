"""What a source goes through while it is read: emptied, rewritten, altered, locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

from integration.conftest import Database, InProcess, Make, Place
from tidegate.core.batch import StagedWrite
from tidegate.core.errors import DriftRefused, SourceBusy, SourceChanged
from tidegate.core.relation import Relation
from tidegate.load.sources import reading as readings
from tidegate.load.sources.cdc import first_copy as copy_points
from tidegate.load.sources.cdc.first_copy import copy_point
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import reading
from tidegate.postgres.catalog import describe_query, describe_table
from tidegate.postgres.connection import READER, Connection, connect, own_timeouts
from tidegate.project import Project
from tidegate.spark.binary_copy import Copy

ORDERS: dict[str, Any] = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "key": "id",
    "cursor": "updated_at",
}
CREATE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, total bigint, updated_at timestamptz NOT NULL)"
)
FILL = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + n * interval '1 minute'"
    " FROM generate_series(1, 20) n"
)
TIE = FILL.replace("n * interval '1 minute'", "interval '0'")
ROWS = "SELECT id, total, updated_at FROM {} ORDER BY id"
PROMPT = {"safety": {"lock_timeout": "1s"}}


class Beside(InProcess):
    """Does something once, right before the rows of the first batch are read."""

    def __init__(self, project: Project, deed: Callable[[], None]) -> None:
        super().__init__(lambda: project.context.spark)
        self._deeds = [deed]

    def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
        while self._deeds:
            self._deeds.pop()()
        return super().stage(copy)


def wait_until_locked_out(database: Database, table: str = "orders") -> None:
    """Return when some session waits for a lock on the table."""
    with database.connect() as session:
        for _ in range(3000):
            row = session.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass",
                (table,),
            ).fetchone()
            if row and row[0]:
                return
            session.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("nobody waits")


def same(place: Place, target: str = "raw.orders") -> bool:
    return place.source.execute(ROWS.format("orders")) == place.target.execute(ROWS.format(target))


class Refresh:
    """A job of the source that empties a table and fills it again, right when it is to be read.

    It has the lock before the reading asks for it, and commits once the reading waits.
    """

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._database = database
        self._begin = readings.begin_read_only
        self.times = 0
        monkeypatch.setattr(readings, "begin_read_only", self._beside)

    def _beside(self, session: Connection, application: str = READER) -> None:
        if application != READER and self.times == 0:
            self.times += 1
            refresh = self._database.connect()
            refresh.execute("BEGIN")
            refresh.execute("CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM orders")
            refresh.execute("TRUNCATE orders")
            refresh.execute("INSERT INTO orders SELECT * FROM kept")
            threading.Thread(target=self._commit, args=(refresh,)).start()
        self._begin(session, application)

    def _commit(self, refresh: psycopg.Connection[Any]) -> None:
        with refresh:
            wait_until_locked_out(self._database)
            refresh.execute("COMMIT")


def test_a_table_that_is_emptied_and_filled_again_is_never_read_as_empty(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {**ORDERS, "name": "replaced", "target": "warehouse:raw.replaced"}
    replaced |= {"mode": "replace", "cursor": None}
    project, place = make(ORDERS, replaced)
    place.source.execute(CREATE, FILL)
    project.run("orders")
    ways: dict[str, Callable[[], object]] = {
        "replace": lambda: project.run("replaced"),
        "full refresh": lambda: project.run("orders", full_refresh=True),
        "repair": lambda: project.verify("orders", repair=True),
        "backfill": lambda: project.backfill("orders", low="2026-01-01", high="2026-01-02"),
    }
    for name, way in ways.items():
        place.source.execute("UPDATE orders SET total = total + 1 WHERE id > 5")
        refresh = Refresh(place.source, monkeypatch)
        way()
        assert refresh.times == 1, name
        assert same(place, "raw.replaced" if name == "replace" else "raw.orders"), name
    assert place.target.value("SELECT count(*) FROM raw.orders") == 20


def test_a_tie_is_closed_by_the_rows_after_it_and_not_by_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make({**ORDERS, "batch_rows": 5})
    place.source.execute(CREATE, TIE)
    project.run("orders", max_batches=1)
    place.source.execute("CREATE TABLE kept AS SELECT * FROM orders WHERE id > 5")
    place.source.execute("DELETE FROM orders WHERE id > 5")
    assert project.run("orders").found_nothing
    place.source.execute("INSERT INTO orders SELECT * FROM kept")
    # Its rest is there too when the table is emptied and filled again right now.
    refresh = Refresh(place.source, monkeypatch)
    project.run("orders")
    assert refresh.times == 1
    assert same(place)
    place.source.execute("INSERT INTO orders VALUES (99, 1, '2026-02-01')")
    assert project.run("orders").watermark == "2026-02-01 00:00:00+00"
    assert same(place)

    # A tie whose rest was deleted does not stop the rows after it.
    place.source.execute(
        "INSERT INTO orders SELECT n, n, '2026-03-01' FROM generate_series(100, 119) n"
    )
    project.run("orders", max_batches=1)
    place.source.execute("DELETE FROM orders WHERE id > 104")
    place.source.execute("INSERT INTO orders VALUES (200, 1, '2026-04-01')")
    assert project.run("orders").rows == 1
    assert same(place)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'",
        "TRUNCATE orders",
    ],
)
def test_a_change_of_the_table_is_let_through_and_the_load_planned_again(
    make: Make,
    statement: str,
) -> None:
    """The reading holds its snapshot and would not go on before the change is done."""
    project, place = make(ORDERS, **PROMPT)
    place.source.execute(CREATE, FILL)
    changed = threading.Event()

    def change() -> None:
        place.source.execute(statement)
        changed.set()

    project.context.stager = Beside(project, lambda: start_and_wait(change, changed))
    report = project.run("orders")
    assert report.status == "done"
    assert same(place) or statement.startswith("TRUNCATE")
    assert report.rows == place.source.value("SELECT count(*) FROM orders")


def start_and_wait(work: Callable[[], None], done: threading.Event) -> None:
    threading.Thread(target=work, daemon=True).start()
    assert done.wait(30), "the change is kept waiting"


def test_a_source_that_stays_locked_is_busy_and_nothing_hangs(make: Make) -> None:
    project, place = make(ORDERS, safety={"lock_timeout": "100ms"})
    place.source.execute(CREATE, FILL)
    with place.source.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceBusy) as refused:
            project.run("orders")
        assert refused.value.exit_code == 75
        with pytest.raises(SourceBusy):
            project.verify("orders")
    assert project.run("orders").rows == 20


def test_a_type_that_changes_between_two_batches_is_never_read_as_the_old_one(
    make: Make,
) -> None:
    """Eight bytes are eight bytes: a bigint could be taken for a double."""
    project, place = make({**ORDERS, "batch_rows": 10})
    place.source.execute(CREATE, FILL)
    change = "ALTER TABLE orders ALTER total TYPE double precision"
    deeds = [change]

    class Changing(InProcess):
        def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
            writes = super().stage(copy)
            if deeds:
                # The first batch is staged; the second will be planned with the old type.
                later = deeds.pop()
                ended = threading.Thread(target=place.source.execute, args=(later,))
                ended.start()
                threads.append(ended)
            return writes

    threads: list[threading.Thread] = []
    project.context.stager = Changing(lambda: project.context.spark)
    try:
        project.run("orders")
    except DriftRefused:
        assert place.target.value("SELECT max(total) FROM raw.orders") <= 20
    else:
        assert same(place)
    threads[0].join()


def test_timeouts_of_the_role_or_database_do_not_end_a_reading(make: Make) -> None:
    project, place = make(ORDERS, databases=3)
    place.source.execute(CREATE, FILL)
    name = sql.Identifier(place.source.value("SELECT current_database()"))
    for setting in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        place.source.execute(
            sql.SQL("ALTER DATABASE {} SET {} = '50ms'").format(name, sql.SQL(setting))
        )
    patient = "SET transaction_timeout = 0; SELECT pg_sleep(0.2)"
    project.context.stager = Beside(project, lambda: place.source.execute(patient) and None)
    assert project.run("orders").rows == 20
    with project.context.databases.connect_source("shop") as session:
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert session.execute(f"SHOW {setting}").fetchone() == ("0",)
        assert session.execute("SHOW lock_timeout").fetchone() == ("5s",)


# --- the session itself

BEHIND = {
    "orders": ["orders"],
    "days": ["days", "days_one", "days_two"],
    "parent": ["parent", "child"],
    "shown": ["orders", "shown"],
    "SELECT o.id, o.total, o.updated_at FROM orders o JOIN days d USING (id)": ["orders", "days"],
}
SCHEMA = (
    CREATE,
    FILL,
    "CREATE TABLE days (id bigint, total bigint, updated_at timestamptz) PARTITION BY RANGE (id)",
    "CREATE TABLE days_one PARTITION OF days FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE days_two PARTITION OF days FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE parent (id bigint, total bigint, updated_at timestamptz)",
    "CREATE TABLE child () INHERITS (parent)",
    "CREATE VIEW shown AS SELECT * FROM orders",
)


def open_session(database: Database, lock_seconds: float = 5, **options: str) -> Connection:
    session = connect(
        psycopg.conninfo.make_conninfo(database.conninfo, **options),
        name="the source",
        application="tidegate source",
    )
    own_timeouts(session, lock_seconds)
    return session


def open_source(session: Connection, what: str = "orders") -> PostgresSource:
    relation = Relation("public", "orders" if what.startswith("SELECT") else what)
    table = (
        describe_query(session, relation, what)
        if what.startswith("SELECT")
        else describe_table(session, relation)
    )
    assert table is not None
    columns = table.columns
    return PostgresSource(table, columns, (), None, None, None, batch_rows=10)


def count(session: Connection, source: PostgresSource) -> int:
    row = session.execute(sql.SQL("SELECT count(*) FROM {}").format(source.relation)).fetchone()
    assert row is not None
    return int(row[0])


def test_all_tables_behind_a_relation_are_locked_while_it_is_read(database: Database) -> None:
    database.execute(*SCHEMA)
    for what, tables in BEHIND.items():
        with open_session(database) as session:
            with reading(session, open_source(session, what), 5):
                for table in tables:
                    with pytest.raises(pg.LockNotAvailable):
                        lock(database, table, "50ms")
            for table in tables:
                lock(database, table, "5s")


def lock(database: Database, table: str, wait: str) -> None:
    statement = f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    database.execute(f"SET lock_timeout = '{wait}'", "BEGIN", statement, "ROLLBACK")


@pytest.mark.parametrize("statement", ["REINDEX TABLE orders", "TRUNCATE orders"])
def test_a_reading_gives_way_to_whoever_waits_for_its_tables_or_their_indexes(
    database: Database, statement: str
) -> None:
    """A session holds every index that its plans have looked at, and all others queue behind."""
    database.execute(CREATE, FILL)
    changed = threading.Event()

    def change() -> None:
        database.execute(statement)
        changed.set()

    def read() -> None:
        with open_session(database) as session:
            source = open_source(session)
            with reading(session, source, 1):
                count(session, source)
                start_and_wait(change, changed)
                count(session, source)

    with pytest.raises(SourceBusy, match="waits to change"):
        read()


def test_what_this_role_may_not_lock_is_known_by_its_files(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right to read some columns, or a view of another's table, does not allow LOCK TABLE."""
    database.execute(
        *SCHEMA,
        "DROP ROLE IF EXISTS tidegate_columns",
        "CREATE ROLE tidegate_columns LOGIN",
        "GRANT SELECT (id, total, updated_at) ON orders TO tidegate_columns",
        "GRANT SELECT (id, total, updated_at) ON shown TO tidegate_columns",
        "CREATE VIEW narrow AS SELECT id, total, updated_at FROM orders",
        "ALTER VIEW narrow OWNER TO tidegate_columns",
    )
    try:
        for what in ("orders", "shown", "narrow"):
            refresh = Refresh(database, monkeypatch)
            with open_session(database) as session:
                session.execute("SET ROLE tidegate_columns")
                source = open_source(session, what)
                with reading(session, source, 5):
                    assert count(session, source) == 20, what
            assert refresh.times == 1
    finally:
        database.execute("DROP OWNED BY tidegate_columns", "DROP ROLE tidegate_columns")


def test_columns_are_those_that_the_source_was_described_with(database: Database) -> None:
    for change, words in (
        ("ALTER TABLE orders ALTER total TYPE double precision", "another type"),
        ("ALTER TABLE orders RENAME total TO amount", "does not exist"),
        ("ALTER TABLE orders RENAME TO old", "does not exist"),
        ("ALTER TABLE orders RENAME TO old; CREATE TABLE orders (LIKE old)", "another table"),
    ):
        database.execute("DROP TABLE IF EXISTS orders, old", CREATE, FILL)
        with open_session(database) as session:
            source = open_source(session)
            database.execute(change)
            with pytest.raises(SourceChanged, match=words), reading(session, source, 5):
                pass
            assert session.execute("SELECT 1").fetchone() == (1,)

    # A domain is read in the type below it.
    database.execute(
        "DROP TABLE orders",
        "CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE >= 0)",
        "CREATE TABLE orders (id bigint, total price, name varchar(7), at timestamptz(3))",
    )
    with open_session(database) as session:
        source = open_source(session)
        with reading(session, source, 5):
            assert count(session, source) == 0


def test_a_table_that_is_rewritten_again_and_again_is_busy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(*SCHEMA)
    monkeypatch.setattr(readings, "_lock", lambda *_: database.execute("TRUNCATE orders", FILL))
    with (
        open_session(database) as session,
        pytest.raises(SourceBusy, match="emptied or rewritten 5 times"),
        reading(session, open_source(session), 5),
    ):
        pass


def test_a_partition_that_is_dropped_before_it_is_locked_is_not_missed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE many PARTITION OF orders FOR VALUES FROM (10) TO (100)",
        "INSERT INTO orders SELECT generate_series(1, 20)",
    )
    lock, drops = readings._lock, ["DROP TABLE many"]

    def dropping(connection: Connection, tables: list[sql.Composable | None]) -> None:
        while drops:
            database.execute(drops.pop())
        lock(connection, tables)

    monkeypatch.setattr(readings, "_lock", dropping)
    with open_session(database) as session:
        source = open_source(session)
        with reading(session, source, 5):
            assert count(session, source) == 9


def test_a_copy_point_whose_table_is_rewritten_before_it_is_locked_is_taken_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(*SCHEMA)
    take, deeds = copy_points._make, ["TRUNCATE orders", FILL]

    def rewriting(*given: Any) -> tuple[str, str]:
        made = take(*given)
        if deeds:
            database.execute(*deeds)
            deeds.clear()
        return made

    monkeypatch.setattr(copy_points, "_make", rewriting)
    with open_session(database) as session:
        source = open_source(session)
        with copy_point(
            database.conninfo, "shop", session, source, timeout_seconds=30, lock_seconds=5
        ) as point:
            assert count(session, source) == 20
            with database.connect() as reader:
                for statement in point.snapshot.entering():
                    reader.execute(statement)
                assert reader.execute("SELECT count(*) FROM orders").fetchone() == (20,)


def test_a_run_ends_at_the_horizon_of_its_beginning_however_quick_the_writers_are(
    make: Make,
) -> None:
    project, place = make({**ORDERS, "batch_rows": 10})
    place.source.execute(CREATE, FILL)
    more = "INSERT INTO orders SELECT max(id) + n, n, clock_timestamp() FROM orders, {} GROUP BY n"

    class Outpaced(InProcess):
        batches = 0

        def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
            self.batches += 1
            assert self.batches < 10, "the run does not end"
            place.source.execute(more.format("generate_series(1, 10) n"))
            return super().stage(copy)

    project.context.stager = Outpaced(lambda: project.context.spark)
    assert project.run("orders").rows == 20
    assert not same(place)
