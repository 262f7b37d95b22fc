"""The one way to read a source: its tables locked, then one snapshot of them, which gives way.

TRUNCATE and every ALTER that rewrites a table are not MVCC-safe: a snapshot taken before them finds
the table empty afterwards. So the tables behind the relation are locked before the snapshot is
taken, as pg_dump does. What cannot be locked first (a copy point has its snapshot already, and some
tables this role may only read through a view) must have the same files before the snapshot and
once its lock is held.

The session that exports the snapshot holds its locks while Spark works. An ALTER that waits for
them keeps every later reader of the table waiting, the tasks included, and no server sees that
circle. So nobody waits long: sessions have a lock_timeout, and a reading that keeps a change of
its tables waiting ends its own sessions. The work is then planned again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidegate.core.errors import SourceBusy, SourceChanged, SourceError, TidegateError
from tidegate.core.log import log
from tidegate.core.relation import Relation
from tidegate.load.sources.postgres import PostgresSource
from tidegate.postgres.connection import (
    READER,
    Connection,
    Snapshot,
    begin_read_only,
    connect,
    first_line,
    own_timeouts,
)
from tidegate.postgres.queries import column_list, qualified

_TRIES = 5
_COUNT_MILLISECONDS = 1_000

# What a statement that reads nothing has locked is what stands behind the relation: partitions,
# children, and the tables of a view or query.
_BEHIND = """
SELECT l.relation::bigint, n.nspname, c.relname, c.relkind::text,
       pg_relation_filenode(l.relation)::bigint, has_table_privilege(c.oid, 'SELECT')
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation AND c.relkind NOT IN ('i', 'I')
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation::bigint >= 16384
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1
"""
# The same within a snapshot, which does not see tables that are newer than it is. The file node is
# read past the snapshot.
_LOCKED = """
SELECT l.relation::bigint, pg_relation_filenode(l.relation)::bigint
FROM pg_locks l
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation::bigint >= 16384
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pg_get_indexdef(l.relation) IS NULL
"""
# Whoever waits for an index keeps others waiting as well: a plan locks all indexes of a table.
_WAITING = """
SELECT 'process ' || w.pid || coalesce(' of ' || a.usename, '')
FROM pg_locks w LEFT JOIN pg_stat_activity a ON a.pid = w.pid
WHERE w.locktype = 'relation' AND w.relation IN (
    SELECT unnest(%(tables)s::bigint[])::oid
    UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = ANY (%(tables)s::bigint[]::oid[])
  )
  AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND w.mode = 'AccessExclusiveLock' AND NOT w.granted
  AND w.waitstart <= clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY w.waitstart
LIMIT 1
"""
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s
"""


@dataclass(frozen=True, slots=True)
class _Behind:
    relation: Relation
    kind: str
    node: int | None
    may_lock: bool

    @property
    def lock(self) -> sql.Composable | None:
        """How LOCK TABLE names it; a view is locked with all that it shows, by its owner."""
        if not self.may_lock or self.kind not in "rpv":
            return None
        return sql.SQL("" if self.kind == "v" else "ONLY ") + qualified(self.relation)


@contextmanager
def reading(
    connection: Connection,
    source: PostgresSource,
    lock_seconds: float,
    *,
    given: Callable[[], AbstractContextManager[str]] | None = None,
) -> Iterator[Snapshot]:
    """Hold one snapshot of the source for any number of readers; its session ends if it gave way.

    `given` opens a snapshot that another session exports, to be read in place of a new one.
    Raises SourceChanged when the columns are not those that `source` was described with, and
    SourceBusy when the source is being changed; both mean: open the source anew and plan again.
    """
    application = f"{READER} {connection.info.backend_pid}"
    held = None
    with _busy(source):
        for _ in range(_TRIES):
            held = _take(connection, source, Snapshot("", application, lock_seconds), given)
            if held is not None:
                break
    if held is None:
        raise SourceBusy(
            f"{source.table.relation} was emptied or rewritten {_TRIES} times while it was to be "
            "read",
            "run again when that has ended; nothing was published",
        )
    snapshot, tables = held
    watch = _Watch(_address(connection), tables, application, lock_seconds / 2)
    watch.start()
    try:
        with _busy(source):
            yield snapshot
    except Exception as error:
        watch.stop()
        if watch.waiting is None:
            raise
        raise SourceBusy(
            f"{watch.waiting} waits to change {source.table.relation}, so that reading it was "
            "given up",
            "run again when that has ended; nothing was published",
        ) from error
    finally:
        watch.stop()
        _end(connection, lost=watch.waiting is not None)


def check_open(connection: Connection, source: PostgresSource) -> None:
    """Refuse to go on in a session that has given way."""
    if connection.closed:
        raise SourceBusy(f"the session that read {source.table.relation} was given up", "run again")


def _take(
    connection: Connection,
    source: PostgresSource,
    snapshot: Snapshot,
    given: Callable[[], AbstractContextManager[str]] | None,
) -> tuple[Snapshot, list[int]] | None:
    """Locks and snapshot; None when a table got other files, or went, in between."""
    with connection.transaction():
        _check_types(connection, source)
        behind = {
            oid: _Behind(Relation(schema, name), kind, node, may_lock)
            for oid, schema, name, kind, node, may_lock in connection.execute(_BEHIND)
        }
    with nullcontext() if given is None else given() as imported:
        begin_read_only(connection, snapshot.application)
        try:
            if imported is not None:
                connection.execute(
                    sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(imported))
                )
            else:
                try:
                    _lock(connection, [one.lock for one in behind.values()])
                except (pg.UndefinedTable, pg.InvalidSchemaName):
                    # A partition or a table behind a view, dropped since it was looked at.
                    _end(connection)
                    return None
                except (pg.InsufficientPrivilege, pg.WrongObjectType):
                    # As of a view whose owner may read some columns only: files tell instead.
                    _end(connection)
                    begin_read_only(connection, snapshot.application)
            _check_types(connection, source)
            found: Mapping[int, int | None] = dict(connection.execute(_LOCKED).fetchall())
            if source.table.oid and source.table.oid not in found:
                raise SourceChanged(
                    f"another table took the name {source.table.relation} while it was to be read",
                    "run again",
                )
            if any(oid not in behind or behind[oid].node != node for oid, node in found.items()):
                _end(connection)
                return None
            name = export_snapshot(connection)
        except BaseException:
            _end(connection)
            raise
    return Snapshot(name, snapshot.application, snapshot.lock_seconds), list(found)


def _lock(connection: Connection, tables: list[sql.Composable | None]) -> None:
    named = [table for table in tables if table is not None]
    if named:
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(", ").join(named))
        )


def _check_types(connection: Connection, source: PostgresSource) -> None:
    """Read nothing, which locks what stands behind the relation, and compare the columns' types.

    Binary COPY does not notice a type of the same width: a bigint would be read as a double.
    """
    statement = sql.SQL("SELECT {} FROM {} LIMIT 0").format(
        column_list(source.read_columns), source.relation
    )
    try:
        cursor = connection.execute(statement)
    except (pg.UndefinedColumn, pg.UndefinedTable, pg.UndefinedObject) as error:
        raise SourceChanged(
            f"{source.table.relation} changed while it was being read: {first_line(error)}",
            "run again",
        ) from None
    result = cursor.pgresult
    assert result is not None
    for place, name in enumerate(source.read_columns):
        column = source.table.column(name)
        assert column is not None
        if (result.ftype(place), result.fmod(place)) != column.type_id:
            raise SourceChanged(
                f"column {name} of {source.table.relation} got another type while it was being "
                "read",
                "run again",
            )


@contextmanager
def _busy(source: PostgresSource) -> Iterator[None]:
    """Locks that others hold, and a standby that must go on, are the source being busy."""
    try:
        yield
    except (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure) as error:
        raise SourceBusy(
            f"{source.table.relation} is locked by another session: {first_line(error)}",
            "run again when that has ended; nothing was published",
        ) from error


def _end(connection: Connection, *, lost: bool = False) -> None:
    if lost:
        connection.close()
    elif not connection.closed:
        with suppress(psycopg.OperationalError):
            connection.execute("ROLLBACK")


def _address(connection: Connection) -> str:
    """The address of a session's database, with all that a second one needs."""
    options = connection.pgconn.info
    given = {one.keyword.decode(): one.val.decode() for one in options if one.val}
    given.pop("replication", None)
    return make_conninfo("", **given)


@dataclass(slots=True)
class _Watch:
    """Ends the sessions of a reading once they keep a change of its tables waiting."""

    conninfo: str = field(repr=False)
    tables: list[int]
    application: str
    seconds: float
    waiting: str | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        if self.seconds > 0:
            self._thread = threading.Thread(target=self._run, name="give-way", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Most readings are over before this; they need no second session.
        while not self._stopped.wait(self.seconds):
            try:
                self._look()
                return
            except (psycopg.Error, TidegateError, OSError) as error:
                log.warning("source_not_watched", reason=str(error).splitlines()[0])

    def _look(self) -> None:
        with connect(self.conninfo, name="the source", application="tidegate source") as session:
            own_timeouts(session, self.seconds)
            while True:
                row = session.execute(
                    _WAITING, {"tables": self.tables, "seconds": self.seconds}
                ).fetchone()
                if row is not None:
                    self.waiting = str(row[0])
                    session.execute(_END, (self.application,))
                    return
                if self._stopped.wait(self.seconds):
                    return


@contextmanager
def exported(connection: Connection) -> Iterator[Snapshot]:
    """Hold one snapshot of tables that nobody else changes: our own."""
    with read_only(connection):
        yield Snapshot(export_snapshot(connection))


@contextmanager
def read_only(connection: Connection) -> Iterator[None]:
    """One snapshot of a database for everything that is read in here, a target's above all."""
    begin_read_only(connection)
    try:
        yield
    finally:
        _end(connection)


def export_snapshot(connection: Connection) -> str:
    """The name under which other sessions see what this one sees, while its transaction lasts."""
    try:
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    except psycopg.Error as error:
        raise SourceError(
            f"the source cannot export a snapshot: {first_line(error)}",
            "connect to the primary directly, not through a pooler",
        ) from None
    assert row is not None
    return str(row[0])


def count_rows(
    connection: Connection, source: PostgresSource, condition: sql.Composable
) -> tuple[int, bool]:
    """How many rows, counted if that is quick, else as the source's planner estimates."""
    return count_relation(connection, sql.SQL("{} WHERE {}").format(source.relation, condition))


def count_relation(connection: Connection, relation: sql.Composable) -> tuple[int, bool]:
    """The same of whatever can follow FROM."""
    statement = sql.SQL("SELECT {} FROM {}")
    try:
        with bounded(connection, _COUNT_MILLISECONDS):
            row = connection.execute(statement.format(sql.SQL("count(*)"), relation)).fetchone()
        assert row is not None
        return int(row[0]), True
    except pg.QueryCanceled:
        explain = sql.SQL("EXPLAIN (FORMAT JSON) ") + statement.format(sql.SQL("1"), relation)
        row = connection.execute(explain).fetchone()
        assert row is not None
        return int(row[0][0]["Plan"]["Plan Rows"]), False


@contextmanager
def bounded(connection: Connection, milliseconds: int) -> Iterator[None]:
    """Statements in here end with QueryCanceled after a while; the snapshot outlives that."""
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', %s, true)", (str(milliseconds),))
        yield
        connection.execute("SET LOCAL statement_timeout = 0")
