"""The replication slot: state, peek, advance."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import BusyError, SourceError
from tidegate.core.watermark import lsn_value
from tidegate.postgres.connection import Connection, first_line

MAX_NAME = 63
UNCOPIED = -1
_DIGEST = 8
_UNFIT = re.compile(r"[^a-z0-9_]+")


def slot_name(project: str, connection: str, *identity: str) -> str:
    """The slot of a project in one source; `identity` tells those of equal names apart."""
    return _name((project, connection), identity)


def publication_name(project: str, sync: str, *identity: str) -> str:
    """The publication of one sync."""
    return _name((project, sync), identity)


def _name(words: tuple[str, ...], identity: tuple[str, ...]) -> str:
    content = "\0".join((*words, *identity))
    digest = hashlib.sha256(content.encode()).hexdigest()[:_DIGEST]
    plain = _UNFIT.sub("_", "_".join(("tidegate", *words)).lower())
    return f"{plain[: MAX_NAME - _DIGEST - 1].rstrip('_')}_{digest}"


@dataclass(frozen=True, slots=True)
class TableState:
    """The published table or one of its partitions, by what changes when no log tells of it."""

    oid: int
    name: str
    link: int
    """the transaction that made it a partition; 0 for the table itself, or UNCOPIED"""
    node: int
    """its file, which VACUUM FULL, TRUNCATE and rewrites replace; 0 where it has none"""
    toast: int
    """the table of its large values, which a rewriting ALTER replaces and VACUUM FULL keeps"""
    columns: str
    """a digest that changes when a column is altered"""
    empty: bool

    def is_empty_as(self, before: TableState) -> bool:
        """Whether it is empty, and was not emptied since."""
        return self.empty and self.node == before.node

    def is_rewritten(self, before: TableState) -> bool:
        """Whether an ALTER has given its rows other values since."""
        if self.node == before.node:
            return False
        return self.toast != before.toast if before.toast else self.columns != before.columns


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables behind a published one at one moment."""

    since: int
    """transactions below this one had ended by then"""
    states: tuple[TableState, ...]

    def by_oid(self) -> dict[int, TableState]:
        return {one.oid: one for one in self.states}

    def is_as(self, other: Tables | None) -> bool:
        """Whether nothing has happened but changes of rows."""
        return other is not None and self.at(other).states == other.at(other).states

    def joined(self, later: Tables) -> Tables:
        """With the tables that have come since, as ones whose rows were never copied."""
        return self.with_uncopied((one.oid, one.name) for one in later.states if one.node)

    def with_uncopied(self, tables: Iterable[tuple[int, str]]) -> Tables:
        """With these, by oid and name, of which only the log has brought rows."""
        known = self.by_oid()
        come = (
            TableState(oid, name, link=UNCOPIED, node=oid, toast=0, columns="", empty=False)
            for oid, name in tables
            if oid not in known
        )
        return replace(self, states=(*self.states, *come))

    def at(self, later: Tables) -> Tables:
        """As they are remembered with what is loaded up to a later moment: empty is only what is
        so still."""
        found = later.by_oid()
        return replace(
            self,
            states=tuple(
                replace(one, empty=one.oid in found and found[one.oid].is_empty_as(one))
                for one in self.states
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return {"since": self.since, "states": [list(astuple(one)) for one in self.states]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Tables | None:
        if data is None:
            return None
        return cls(data["since"], tuple(TableState(*one) for one in data["states"]))


@dataclass(frozen=True, slots=True)
class SlotOrigin:
    """Where changes come from, as it is remembered with the watermark.

    Each part changes when somebody has made that thing anew under its old name, and with it the
    changes in between are lost.
    """

    system: str
    timeline: int
    slot: str
    publication: int
    member: int
    """the table's place in the publication, which goes when the table leaves it"""
    tables: Tables | None = None
    """with whose rows the target is equal, but for what the log has; None: loaded before this was
    remembered"""
    seen: Tables | None = None
    """as they were when the log was last loaded to its end, if something is in no log: what a
    repair after that makes good"""

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "slot": self.slot,
            "publication": self.publication,
            "member": self.member,
            "tables": None if self.tables is None else self.tables.to_json(),
            "seen": None if self.seen is None else self.seen.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SlotOrigin:
        return cls(
            data["system"],
            data["timeline"],
            data["slot"],
            data["publication"],
            data["member"],
            Tables.from_json(data.get("tables")),
            Tables.from_json(data.get("seen")),
        )


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the server shows it."""

    name: str
    plugin: str
    database: str | None
    active_pid: int | None
    restart: str | None
    confirmed: str | None
    wal_status: str | None
    lost_because: str | None
    """why the server has given it up; None where it has not"""
    retained_bytes: int
    """how much of the log the server keeps for it"""
    safe_bytes: int | None
    """how much may still be written before the server gives it up; None without a limit"""

    @property
    def is_lost(self) -> bool:
        return self.lost_because is not None or self.confirmed is None


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


_MOST_MESSAGES = 2**31 - 1


@dataclass(slots=True)
class SlotPeek:
    """One look at a slot; `messages` counts what came while it is being read."""

    connection: Connection
    slot: str
    publication: str
    upto: str | None = None
    """whole transactions up to this position"""
    most: int | None = None
    """whole transactions until so many messages have come"""
    check_alive: Callable[[], None] = lambda: None
    messages: int = field(default=0, init=False)

    @property
    def was_cut(self) -> bool:
        """Whether it ended for the number of messages, so that there may be more."""
        return self.most is not None and self.messages >= self.most

    def __iter__(self) -> Generator[tuple[str, bytes]]:
        deadline = time.monotonic() + _ACTIVE_SECONDS
        while True:
            try:
                yield from self._read()
                return
            except pg.ObjectInUse:
                # A session that was killed lets go when its server process notices.
                if time.monotonic() > deadline:
                    raise slot_in_use(self.slot) from None
            self.check_alive()
            time.sleep(_POLL_SECONDS)

    def _read(self) -> Iterator[tuple[str, bytes]]:
        most = None if self.most is None else min(self.most, _MOST_MESSAGES)
        statement = sql.SQL(
            "COPY (SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes({}, {}::pg_lsn,"
            " {}, 'proto_version', '1', 'publication_names', {})) TO STDOUT (FORMAT binary)"
        ).format(
            sql.Literal(self.slot),
            sql.Literal(self.upto),
            sql.Literal(most),
            sql.Literal(sql.Identifier(self.publication).as_string(None)),
        )
        self.messages = 0
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["text", "bytea"])
            for lsn, data in copy.rows():
                self.messages += 1
                yield lsn, data
