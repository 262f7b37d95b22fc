"""How far a cursor may be read now without passing rows that are still being written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from psycopg import sql

from tidegate.core.errors import DeclarationError
from tidegate.core.relation import RelationKind, Table
from tidegate.core.watermark import CursorType, Guarantee, Horizon, Session
from tidegate.load.sources.exactness import SIGHT, TREE, Facts, Sight, judge, read_facts
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import OwnSQL, column_list, condition, qualified, subquery

# How long a session may stay between taking its transaction's time and showing it before it counts
# as open since its last change of state, or for a minute.
_DOUBT_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.002
# How long to wait for short transactions to end before an integer cursor is called held back.
_PATIENCE_SECONDS = 3.0

# Our own readers do not count: a session has these names only while it is in a READ ONLY
# transaction (postgres/connect.py), or, as "tidegate source", looks up where to read.
#
# A transaction has its time before it shows it (xact_start). A session that waits for its client
# has taken none yet; any other without a transaction may just have, after its last change of
# state. In a procedure that commits, statement_timestamp() is that of the CALL (query_start).
_SESSIONS = """
SELECT pid,
       CASE WHEN state = 'active' THEN least(xact_start, query_start) ELSE xact_start END,
       xact_start IS NULL,
       greatest(coalesce(state_change, backend_start), clock_timestamp() - interval '1 minute'),
       'process ' || pid || ' of ' || coalesce(usename, '?')
       || coalesce(' (' || nullif(application_name, '') || ')', '')
       || coalesce(' from ' || host(client_addr), '') || ', ' || coalesce(state, 'active')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_type NOT IN ('autovacuum worker', 'walsender', 'parallel worker')
  AND application_name <> 'tidegate source' AND application_name NOT LIKE 'tidegate read%'
  AND (xact_start IS NOT NULL
       OR coalesce(wait_event_type, '') NOT IN ('Client', 'Activity', 'Extension'))
"""

# A prepared transaction does nothing more, so only one that locks the relation can matter; when
# it began is not recorded anywhere, so nothing may be read past the watermark until it is gone.
# Its locks are found through the one on its own id: they keep the virtual id of the session that
# prepared it, and '-1/xid' only after a restart.
_PREPARED = f"""
WITH {TREE}
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
        AND l.relation IN (SELECT oid FROM tree)))
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


# What a role may not see of the receiver is NULL; then the clock has to do.
_REPLAYED = """
SELECT clock_timestamp(), pg_last_xact_replay_timestamp(),
       coalesce(r.last_msg_send_time, clock_timestamp()),
       r.pid IS NOT NULL AND coalesce(r.status, 'streaming') = 'streaming'
       AND coalesce(pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn(), false)
       AND coalesce(r.latest_end_lsn <= pg_last_wal_replay_lsn(), true)
FROM (SELECT) one LEFT JOIN pg_stat_wal_receiver r ON true
"""
# An idle primary sends something every half minute.
_REPLAY_TRIES = 40


class CursorMemory(Protocol):
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
    _facts: list[Facts] = field(default_factory=list, compare=False, repr=False)

    @property
    def precision(self) -> int:
        """Decimal places of seconds that the column keeps."""
        column = self.table.column(self.name)
        match = re.search(r"\((\d)\)", column.type if column else "")
        return int(match.group(1)) if match else 6

    def zone(self, connection: Connection) -> str:
        """As which a value without a time zone is taken."""
        return self.timezone or _server_timezone(connection)

    @property
    def soon(self) -> sql.Composed:
        """A moment from now, since clocks may differ by a little; values above it are ahead.

        Not clock_timestamp(), for which no index is used.
        """
        now = sql.SQL("(pg_catalog.statement_timestamp() + interval '1 minute')")
        if self.type is CursorType.TIMESTAMPTZ:
            return sql.Composed([now])
        zone = sql.SQL(f"({_ZONE})") if self.timezone is None else sql.Literal(self.timezone)
        return sql.SQL("({} AT TIME ZONE {})::{}").format(now, zone, sql.SQL(self.type.value))

    def facts(self, connection: Connection, sight: Sight = SIGHT) -> Facts:
        """What decides which promise holds for it; the catalog is asked once."""
        if not self._facts:
            found = read_facts(
                connection,
                self.table,
                self.name,
                self.type,
                precision=self.precision,
                zone=self.zone(connection),
                settle_seconds=self.settle_seconds,
            )
            self._facts.append(found)
        return replace(self._facts[0], sight=sight)


@dataclass(frozen=True, slots=True)
class _View:
    """What this session can see of the others; `clock` is how far the source is known to be."""

    clock: datetime | None
    sight: Sight
    oldest: datetime | None = None
    held_by: Session | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One session at one look: since when it is open, or may be if that does not show."""

    pid: int
    since: datetime | None
    idle_since: datetime
    what: str


def read_horizon(
    connection: Connection,
    cursor: CursorColumn | None,
    memory: CursorMemory,
    *,
    wait: Callable[[float], None] = time.sleep,
    may_wait: bool = True,
) -> Horizon:
    """The horizon now; must be called before the snapshot is taken, outside a transaction."""
    if cursor is None:
        return Horizon(None, Guarantee.EXACT, "everything is read each time, in one snapshot")
    if cursor.type is CursorType.XID8:
        return _xid_horizon(connection, cursor)
    prepared = _prepared_writer(connection, cursor.table)
    if prepared is not None:
        return Horizon(None, *judge(cursor.facts(connection)), prepared)
    if cursor.type.is_integer:
        return _integer_horizon(connection, cursor, memory, wait, may_wait)
    return _time_horizon(connection, cursor, wait)


def _xid_horizon(connection: Connection, cursor: CursorColumn) -> Horizon:
    """Transactions below a snapshot's xmin have ended, whatever began first or commits last."""
    row = connection.execute(
        "SELECT clock_timestamp(), (pg_snapshot_xmin(s)::text::numeric - 1)::text,"
        " pg_snapshot_xmin(s) < pg_snapshot_xmax(s) FROM pg_current_snapshot() s"
    ).fetchone()
    assert row is not None
    clock, high, is_open = row
    held = _oldest_writer(connection) if is_open else None
    return Horizon(high, *judge(cursor.facts(connection)), held, clock)


def _oldest_writer(connection: Connection) -> Session | None:
    row = connection.execute(_WRITERS).fetchone()
    return Session(row[1], row[0]) if row else None


def _time_horizon(
    connection: Connection, cursor: CursorColumn, wait: Callable[[float], None]
) -> Horizon:
    view = _look(connection, wait)
    judged = judge(cursor.facts(connection, view.sight))
    moment = view.clock
    if moment is not None and not view.sight.is_clear:
        moment -= timedelta(seconds=cursor.settle_seconds)
    elif moment is not None and view.oldest is not None:
        moment = min(moment, view.oldest)
    high = None if moment is None else _bound(connection, cursor, moment)
    settles = not view.sight.is_clear
    return Horizon(high, *judged, view.held_by, view.clock, settles, view.lag_seconds)


def _integer_horizon(
    connection: Connection,
    cursor: CursorColumn,
    memory: CursorMemory,
    wait: Callable[[float], None],
    may_wait: bool,
) -> Horizon:
    """The highest value seen before the oldest transaction still open began."""
    seen = _highest(connection, cursor)
    view = _look(connection, wait)
    observed_at = view.clock
    if seen is not None and observed_at is not None:
        memory.record(observed_at, seen)
    judged = judge(cursor.facts(connection, view.sight))
    if not view.sight.is_clear:
        high = None
        if observed_at is not None:
            settle = timedelta(seconds=cursor.settle_seconds)
            high = memory.latest_before(observed_at - settle)
            if high is None and seen is not None and may_wait:
                settled = _wait_until(connection, observed_at + settle, settle, wait)
                high = seen if settled else None
        return Horizon(high, *judged, view.held_by, observed_at, True, view.lag_seconds)
    assert observed_at is not None
    patience = time.monotonic() + (_PATIENCE_SECONDS if may_wait else 0)
    while view.oldest is not None and view.oldest <= observed_at and time.monotonic() < patience:
        wait(0.05)
        view = _look(connection, wait)
    if view.oldest is not None and view.oldest <= observed_at:
        high = memory.latest_before(view.oldest)
        return Horizon(high, *judged, view.held_by, observed_at)
    return Horizon(seen, *judged, None, observed_at)


def _wait_until(
    connection: Connection,
    moment: datetime,
    settle: timedelta,
    wait: Callable[[float], None],
) -> bool:
    """Wait for the time to settle; a standby that is behind may need a little longer."""
    wait(settle.total_seconds())
    for _ in range(_REPLAY_TRIES):
        view = _look(connection, wait)
        if view.sight.standby is None or (view.clock is not None and view.clock >= moment):
            return True
        wait(1.0)
    return False


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
        return _look_at_standby(connection)
    sight = Sight(connection.info.user, None, sees_all, hidden)
    if not sight.is_clear:
        return _View(clock, sight)
    oldest = find_oldest(lambda: _sessions(connection), wait)
    if oldest is None:
        return _View(clock, sight)
    return _View(clock, sight, oldest.since, Session(oldest.what, oldest.since))


def _look_at_standby(connection: Connection) -> _View:
    """How far the primary's time is known to be replayed: nothing later may be taken as settled.

    An idle primary commits nothing, so the last commit's time stands still; while the receiver
    streams and all of it is replayed, the primary's last message counts.
    """
    row = connection.execute(_REPLAYED).fetchone()
    assert row is not None
    clock, replayed, told, is_level = row
    reached = max((one for one in (replayed, told if is_level else None) if one), default=None)
    if reached is None:
        where = "the source is a standby that has replayed nothing yet"
        return _View(None, Sight(standby=where), None, Session(where, None))
    lag = 0.0 if is_level else max(0.0, (clock - reached).total_seconds())
    behind = f", {lag:.0f} s behind its primary," if lag >= 1 else ""
    where = f"the source is a standby{behind} and shows no open transactions"
    held = None
    if behind:
        held = Session(f"the standby, which has replayed up to {reached:%Y-%m-%d %H:%M:%S%z}", None)
    return _View(reached, Sight(standby=where), None, held, lag)


def _sessions(connection: Connection) -> list[Seen]:
    return [
        Seen(pid, None if idle else since, idle_since, what)
        for pid, since, idle, idle_since, what in connection.execute(_SESSIONS).fetchall()
    ]


def find_oldest(look: Callable[[], list[Seen]], wait: Callable[[float], None]) -> Seen | None:
    """The session that has been open longest, or may have been.

    A session without a transaction that does not wait for its client may have taken a time that
    it does not show yet, so it is looked at until it has been seen to show one or to wait. What a
    look sees of one session is not of one moment, so the last look counts, and it comes after
    all doubts are gone.
    """
    seen = look()
    doubtful = {one.pid for one in seen if one.since is None}
    until = time.monotonic() + _DOUBT_SECONDS
    while True:
        settled = not doubtful
        seen = look()
        doubtful &= {one.pid for one in seen if one.since is None}
        if settled or time.monotonic() > until:
            break
        wait(_LOOK_AGAIN_SECONDS)
    found = [
        one if one.since is not None else replace(one, since=one.idle_since)
        for one in seen
        if one.since is not None or one.pid in doubtful
    ]
    return min(found, key=lambda one: one.since or one.idle_since, default=None)


def _prepared_writer(connection: Connection, table: Table) -> Session | None:
    is_view = table.kind in (RelationKind.VIEW, RelationKind.FOREIGN, RelationKind.QUERY)
    row = connection.execute(_PREPARED, {"any_relation": is_view, "oid": table.oid}).fetchone()
    return Session(row[1], row[0]) if row else None


def _highest(connection: Connection, cursor: CursorColumn) -> str | None:
    row = connection.execute(
        sql.SQL("SELECT pg_catalog.max({})::text FROM {}").format(
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
    relation: sql.Composable = qualified(table.relation)
    if table.kind is RelationKind.VIEW:
        # What its functions call may be named without a schema.
        relation = OwnSQL(relation.as_string(None))
    if where is None:
        return relation
    # Blocks are read by ctid; a star would need the right to read every column.
    names = [*(["ctid"] if table.has_blocks else []), *system, *columns]
    rows = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        column_list(names), relation, condition(where)
    )
    return sql.SQL("({}) AS {}").format(rows, sql.Identifier(table.relation.name))


def _bound(connection: Connection, cursor: CursorColumn, moment: datetime) -> str:
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
        {"moment": moment, "unit": unit, "zone": cursor.zone(connection)},
    ).fetchone()
    assert row is not None
    return str(row[0])


_ZONE = "SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'TimeZone'"


def _server_timezone(connection: Connection) -> str:
    row = connection.execute(_ZONE).fetchone()
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
