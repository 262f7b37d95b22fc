"""The logical slot of a source: made, looked at, advanced, dropped, and held by one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg

from tidegate.errors import BusyError, SourceError
from tidegate.model.lsn import lsn_value
from tidegate.model.slot import SlotState
from tidegate.postgres.connect import Connection, first_line

PLUGIN = "pgoutput"
_POLL_SECONDS = 0.1
# A session that was killed keeps its slot until its server process has noticed.
_ACTIVE_SECONDS = 30.0
_FLUSH_SECONDS = 30.0

_LOOK = """
SELECT slot_name, plugin, database, active_pid, restart_lsn::text, confirmed_flush_lsn::text,
       wal_status, to_jsonb(s) ->> 'invalidation_reason',
       greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::bigint, safe_wal_size
FROM pg_replication_slots s WHERE slot_name = ANY (%s) ORDER BY slot_name
"""


def flushed_position(connection: Connection) -> str:
    """Where the log ends, once all of it can be read: a commit may be seen before it is."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    end = str(row[0])
    deadline = time.monotonic() + _FLUSH_SECONDS
    while time.monotonic() < deadline:
        row = connection.execute(
            "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (end,)
        ).fetchone()
        if row is not None and row[0]:
            return end
        time.sleep(_POLL_SECONDS)
    raise BusyError(
        "the source does not write its log to its disk", "look at the source's log, then try again"
    )


def list_slots(connection: Connection, names: list[str]) -> list[SlotState]:
    """Those of these slots that are there."""
    return [_state(row) for row in connection.execute(_LOOK, (names,)).fetchall()]


def _state(row: tuple[object, ...]) -> SlotState:
    name, plugin, database, pid, restart, confirmed, status, because, retained, safe = row
    lost = status == "lost"
    return SlotState(
        name=str(name),
        plugin=str(plugin),
        database=None if database is None else str(database),
        active_pid=None if pid is None else int(str(pid)),
        restart=None if restart is None else str(restart),
        confirmed=None if confirmed is None else str(confirmed),
        wal_status=None if status is None else str(status),
        lost_because=str(because or "wal_removed") if lost or because else None,
        retained_bytes=int(str(retained or 0)),
        safe_bytes=None if safe is None else int(str(safe)),
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot, in a session of the database that it decodes."""

    connection: Connection
    name: str

    def look(self) -> SlotState | None:
        """How it stands; None when there is none of that name."""
        found = list_slots(self.connection, [self.name])
        return found[0] if found else None

    def make(self, timeout_seconds: float) -> str:
        """Make it and return where it begins; waits until the transactions that are open end."""
        with statement_timeout(self.connection, timeout_seconds):
            try:
                row = self.connection.execute(
                    "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s)",
                    (self.name, PLUGIN),
                ).fetchone()
            except pg.QueryCanceled:
                raise waited_too_long(self.connection, timeout_seconds) from None
            except (pg.ConfigurationLimitExceeded, pg.InsufficientPrivilege) as error:
                raise SourceError(
                    f"the slot {self.name} cannot be made: {first_line(error)}",
                    "raise max_replication_slots, drop a slot that nobody uses, or grant the right "
                    "REPLICATION; tidegate doctor says which",
                ) from None
        assert row is not None
        return str(row[0])

    def advance(self, lsn: str, check_alive: Callable[[], None] = lambda: None) -> bool:
        """Let the server forget what lies before `lsn`; False when it is there already."""
        found = self.look()
        if found is None or found.confirmed is None or found.is_lost:
            return False
        if lsn_value(lsn) <= lsn_value(found.confirmed):
            return False
        for _ in _until_released(self.name, check_alive):
            try:
                self.connection.execute(
                    "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self.name, lsn)
                )
                return True
            except pg.ObjectInUse:
                continue
        return False

    def drop(self) -> bool:
        """Give it up; False when it was not there."""
        for _ in _until_released(self.name, lambda: None):
            try:
                self.connection.execute("SELECT pg_drop_replication_slot(%s)", (self.name,))
                return True
            except pg.UndefinedObject:
                return False
            except pg.ObjectInUse:
                continue
        return False

    @contextmanager
    def held(self, check_alive: Callable[[], None]) -> Iterator[None]:
        """Only one session decodes a slot at a time: those of one project wait for each other."""
        key = f"tidegate:slot:{self.name}"
        while not self._try(key):
            check_alive()
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            if not self.connection.closed:
                self.connection.execute(
                    "SELECT pg_advisory_unlock(hashtextextended(%s, 0::bigint))", (key,)
                )

    def _try(self, key: str) -> bool:
        row = self.connection.execute(
            "SELECT pg_try_advisory_lock(hashtextextended(%s, 0::bigint))", (key,)
        ).fetchone()
        return bool(row and row[0])


def _until_released(name: str, check_alive: Callable[[], None]) -> Iterator[None]:
    """Tries, as long as another session may still be letting go of a slot."""
    deadline = time.monotonic() + _ACTIVE_SECONDS
    while True:
        yield
        if time.monotonic() > deadline:
            raise slot_in_use(name)
        check_alive()
        time.sleep(_POLL_SECONDS)


def slot_in_use(name: str) -> BusyError:
    """What is said when another session decodes our slot."""
    return BusyError(
        f"the slot {name} is read by another session",
        "see active_pid in pg_replication_slots for who; nothing but Tidegate may read it",
    )


@contextmanager
def statement_timeout(connection: Connection, seconds: float) -> Iterator[None]:
    """Bound what waits for others, transactions as well as locks."""
    setting = (
        "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"
    )
    before = connection.execute(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    ).fetchone()
    connection.execute(setting, (f"{int(seconds * 1000)}ms", "0"))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(setting, before)


def waited_too_long(connection: Connection, seconds: float) -> SourceError:
    """What is said when transactions that are open kept a slot from being made."""
    oldest = None
    with suppress(psycopg.Error):
        oldest = connection.execute(
            "SELECT pid, coalesce(usename, '?'), date_trunc('second', xact_start)::text"
            " FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
            " ORDER BY xact_start LIMIT 1"
        ).fetchone()
    who = (
        f"session {oldest[0]} of {oldest[1]}, open since {oldest[2]}"
        if oldest
        else "one that this role may not see, or that is prepared"
    )
    return SourceError(
        f"after {seconds:.0f} s transactions that were open when it began still are: {who}; a slot "
        "begins only when they have ended",
        "end them, or raise start_timeout in [cdc], and run again",
    )
