"""How far a cursor may be read now without passing rows that are still being written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.model.column import RelationKind, Table
from tidegate.model.cursor import CursorType, Guarantee
from tidegate.model.horizon import Horizon, Session
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, condition, qualified, subquery

# A backend takes its transaction's time a moment before it shows it in pg_stat_activity; the
# clock is read first, and the sessions this much later, so that moment lies in between.
_SHOW_DELAY_SECONDS = 0.01
# How long to wait for short transactions to end before an integer cursor is called held back.
_PATIENCE_SECONDS = 3.0

# Our own readers do not count: a session has these names only while it is in a READ ONLY
# transaction (postgres/connect.py), or, as "tidegate source", looks up where to read.
_SESSIONS = """
SELECT xact_start, 'process ' || pid || ' of ' || coalesce(usename, '?')
       || coalesce(' (' || nullif(application_name, '') || ')', '')
       || coalesce(' from ' || host(client_addr), '') || ', ' || coalesce(state, 'active')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
  AND backend_type NOT IN ('autovacuum worker', 'walsender', 'parallel worker')
  AND application_name NOT IN ('tidegate source', 'tidegate read')
ORDER BY xact_start
LIMIT 1
"""

# A prepared transaction does nothing more, so only one that locks the relation can matter; when
# it began is not recorded anywhere, so nothing may be read past the watermark until it is gone.
# Its locks are found through the one on its own id: they keep the virtual id of the session that
# prepared it, and '-1/xid' only after a restart.
_PREPARED = """
SELECT p.prepared, 'prepared transaction ' || p.gid || ' of ' || p.owner
FROM pg_prepared_xacts p
WHERE p.database = current_database()
  AND (%(any_relation)s OR EXISTS (
      SELECT FROM pg_locks own
      JOIN pg_locks l ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL
      WHERE own.locktype = 'transactionid' AND own.transactionid = p.transaction
        AND own.pid IS NULL
        AND l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock',
            'ExclusiveLock', 'AccessExclusiveLock')
        AND l.relation IN (SELECT %(oid)s::oid UNION
                           SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass))))
ORDER BY p.prepared
LIMIT 1
"""


# Ids are the whole server's: a transaction in another database holds them back as well.
_WRITERS = """
SELECT began, what FROM (
    SELECT xact_start AS began, age(backend_xid) AS age,
           'process ' || pid || ' of ' || coalesce(usename, '?')
           || coalesce(' (' || nullif(application_name, '') || ')', '')
           || CASE WHEN datname = current_database() THEN '' ELSE ' in database ' || datname END
           || ', ' || coalesce(state, 'active') AS what
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared, age(transaction), 'prepared transaction ' || gid || ' of ' || owner
    FROM pg_prepared_xacts) writers
ORDER BY age DESC LIMIT 1
"""


class Memory(Protocol):
    """Where the highest integer values seen are remembered."""

    def record(self, observed_at: datetime, value: str) -> None: ...

    def latest_before(self, moment: datetime) -> str | None: ...


@dataclass(frozen=True, slots=True)
class CursorColumn:
    """The cursor of one table and how its values are stamped."""

    table: Table
    name: str
    type: CursorType
    settle_seconds: float
    timezone: str | None = None
    lookback_days: bool = False

    @property
    def precision(self) -> int:
        """Decimal places of seconds that the column keeps."""
        column = self.table.column(self.name)
        match = re.search(r"\((\d)\)", column.type if column else "")
        return int(match.group(1)) if match else 6


@dataclass(frozen=True, slots=True)
class _View:
    """What this session can see of the others."""

    clock: datetime
    oldest: datetime | None
    held_by: Session | None
    settled: str | None


def read_horizon(
    connection: Connection,
    cursor: CursorColumn | None,
    memory: Memory,
    *,
    wait: Callable[[float], None] = time.sleep,
    may_wait: bool = True,
) -> Horizon:
    """The horizon now; must be called before the snapshot is taken, outside a transaction."""
    if cursor is None:
        return Horizon(None, Guarantee.EXACT, "everything is read each time, in one snapshot")
    if cursor.type is CursorType.XID8:
        return _xid_horizon(connection)
    prepared = _prepared_writer(connection, cursor.table)
    if prepared is not None:
        return Horizon(
            None, Guarantee.EXACT, "a prepared transaction has written to the table", prepared
        )
    if cursor.type.is_integer:
        return _integer_horizon(connection, cursor, memory, wait, may_wait)
    return _time_horizon(connection, cursor, wait)


def _xid_horizon(connection: Connection) -> Horizon:
    """Transactions below a snapshot's xmin have ended, whatever began first or commits last."""
    row = connection.execute(
        "SELECT clock_timestamp(), (pg_snapshot_xmin(s)::text::numeric - 1)::text,"
        " pg_snapshot_xmin(s) < pg_snapshot_xmax(s) FROM pg_current_snapshot() s"
    ).fetchone()
    assert row is not None
    clock, high, is_open = row
    held = _oldest_writer(connection) if is_open else None
    because = "read below the oldest transaction that is open; exact for the id of the transaction"
    return Horizon(high, Guarantee.EXACT, because, held, clock)


def _oldest_writer(connection: Connection) -> Session | None:
    row = connection.execute(_WRITERS).fetchone()
    return Session(row[1], row[0]) if row else None


def _time_horizon(
    connection: Connection, cursor: CursorColumn, wait: Callable[[float], None]
) -> Horizon:
    view = _look(connection, wait)
    moment = view.clock
    if view.settled is not None:
        moment -= timedelta(seconds=cursor.settle_seconds)
    elif view.oldest is not None:
        moment = min(moment, view.oldest)
    zone = cursor.timezone or _server_timezone(connection)
    high = _bound(connection, cursor, moment, zone)
    guarantee, because = _time_guarantee(cursor, view, zone)
    held = view.held_by if view.settled is None else None
    return Horizon(high, guarantee, because, held, view.clock)


def _time_guarantee(cursor: CursorColumn, view: _View, zone: str) -> tuple[Guarantee, str]:
    if view.settled is not None:
        return (
            Guarantee.SETTLED,
            f"{view.settled}, so rows are read {cursor.settle_seconds:g} s late (settle) and "
            "transactions longer than that are covered by lookback only",
        )
    if cursor.type is CursorType.TIMESTAMP and zone.upper() not in ("UTC", "GMT", "ETC/UTC"):
        return (
            Guarantee.BOUNDED,
            f"timestamps without zone are taken as {zone} (cursor_timezone); where that zone "
            "sets its clocks back, rows are covered by lookback only",
        )
    return (
        Guarantee.EXACT,
        "read only below the oldest open transaction; exact for values stamped by the source "
        "database, others are covered by lookback only",
    )


def _integer_horizon(
    connection: Connection,
    cursor: CursorColumn,
    memory: Memory,
    wait: Callable[[float], None],
    may_wait: bool,
) -> Horizon:
    """The highest value seen before the oldest transaction still open began."""
    seen = _highest(connection, cursor)
    view = _look(connection, wait)
    observed_at = view.clock
    if seen is not None:
        memory.record(observed_at, seen)
    if view.settled is not None:
        settled_at = observed_at - timedelta(seconds=cursor.settle_seconds)
        high = memory.latest_before(settled_at)
        if high is None and seen is not None and may_wait:
            wait(cursor.settle_seconds)
            high = seen
        return Horizon(
            high,
            Guarantee.SETTLED,
            f"{view.settled}, so values count once they are {cursor.settle_seconds:g} s old "
            "(settle)",
            measured_at=observed_at,
        )
    patience = time.monotonic() + (_PATIENCE_SECONDS if may_wait else 0)
    while view.oldest is not None and view.oldest <= observed_at and time.monotonic() < patience:
        wait(0.05)
        view = _look(connection, wait)
    because = (
        "read up to the highest value seen before the oldest open transaction began; exact for "
        "values drawn from a sequence (CACHE 1) or counter in the source database"
    )
    if view.oldest is not None and view.oldest <= observed_at:
        high = memory.latest_before(view.oldest)
        return Horizon(high, Guarantee.EXACT, because, view.held_by, observed_at)
    return Horizon(seen, Guarantee.EXACT, because, None, observed_at)


def _look(connection: Connection, wait: Callable[[float], None]) -> _View:
    row = connection.execute(
        "SELECT clock_timestamp(), pg_is_in_recovery(),"
        " pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),"
        " EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'disabled')"
    ).fetchone()
    assert row is not None
    clock, standby, sees_all, hidden = row
    if standby:
        return _View(clock, None, None, "the source is a standby and shows no open transactions")
    if not sees_all:
        return _View(
            clock,
            None,
            None,
            f"role {connection.info.user} may not see others' transactions "
            f"(GRANT pg_read_all_stats TO {connection.info.user} would make it exact)",
        )
    if hidden:
        return _View(clock, None, None, "sessions of the source do not show (track_activities)")
    wait(_SHOW_DELAY_SECONDS)
    oldest = connection.execute(_SESSIONS).fetchone()
    if oldest is None:
        return _View(clock, None, None, None)
    return _View(clock, oldest[0], Session(oldest[1], oldest[0]), None)


def _prepared_writer(connection: Connection, table: Table) -> Session | None:
    is_view = table.kind in (RelationKind.VIEW, RelationKind.FOREIGN, RelationKind.QUERY)
    row = connection.execute(_PREPARED, {"any_relation": is_view, "oid": table.oid}).fetchone()
    return Session(row[1], row[0]) if row else None


def _highest(connection: Connection, cursor: CursorColumn) -> str | None:
    row = connection.execute(
        sql.SQL("SELECT max({})::text FROM {}").format(
            sql.Identifier(cursor.name), readable(cursor.table)
        )
    ).fetchone()
    return row[0] if row else None


def readable(
    table: Table,
    where: str | None = None,
    columns: Iterable[str] = (),
    system: Iterable[str] = (),
) -> sql.Composable:
    """What stands behind FROM: the relation, the rows of it that `where` keeps, or a query."""
    if table.query is not None:
        return subquery(table.query)
    if where is None:
        return qualified(table.relation)
    # Blocks are read by ctid; a star would need the right to read every column.
    names = [*(["ctid"] if table.has_blocks else []), *system, *columns]
    rows = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        column_list(names), qualified(table.relation), condition(where)
    )
    return sql.SQL("({}) AS {}").format(rows, sql.Identifier(table.relation.name))


def _bound(connection: Connection, cursor: CursorColumn, moment: datetime, zone: str) -> str:
    """The last value that cannot be stamped any more, as text of the cursor's type.

    A column that keeps fewer than six decimals rounds its stamps, so a whole unit is left free.
    """
    unit = f"{10**-cursor.precision:.6f} seconds"
    if cursor.type is CursorType.TIMESTAMPTZ:
        expression = "(%(moment)s::timestamptz - %(unit)s::interval)::text"
    elif cursor.type is CursorType.TIMESTAMP:
        expression = "((%(moment)s::timestamptz - %(unit)s::interval) AT TIME ZONE %(zone)s)::text"
    elif cursor.lookback_days:
        expression = "((%(moment)s::timestamptz AT TIME ZONE %(zone)s)::date)::text"
    else:
        expression = "((%(moment)s::timestamptz AT TIME ZONE %(zone)s)::date - 1)::text"
    row = connection.execute(
        sql.SQL("SELECT {}").format(sql.SQL(expression)),
        {"moment": moment, "unit": unit, "zone": zone},
    ).fetchone()
    assert row is not None
    return str(row[0])


def _server_timezone(connection: Connection) -> str:
    row = connection.execute("SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'").fetchone()
    return str(row[0]) if row and row[0] else "UTC"


def check_timezone(connection: Connection, zone: str) -> None:
    """Refuse a time zone the source does not know."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_timezone_names WHERE lower(name) = lower(%s))", (zone,)
    ).fetchone()
    if not (row and row[0]):
        raise DeclarationError(
            f"cursor_timezone {zone!r} is not a time zone the source knows",
            "write a name such as Europe/Berlin or UTC",
        )
