"""Rows found by the transaction that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from psycopg import sql

from tidegate.config.sync import Duplicates, Mode, Sync
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DeclarationError, SourceError
from tidegate.core.relation import RelationKind, Table
from tidegate.core.watermark import CursorType, NullPolicy, Watermark
from tidegate.load.sources.horizon import CursorColumn
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Connection
from tidegate.postgres.server_identity import Fate, Server


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """What must still hold when rows are read from there on."""

    xmin: str
    """every transaction below it has ended: what it wrote is in the snapshot, or never will be"""
    xmax: str
    """no transaction from it on is in the snapshot"""
    system: str
    database: str
    timeline: int
    """0 where it does not matter any more"""
    lsn: str
    tables: tuple[int, ...]
    """the tables that hold the rows: itself, its partitions, those that inherit from it"""
    cursor: str | None = None
    """how far the cursor had got, where one bounds how far back is looked"""
    column: str | None = None
    """that cursor: its name and type"""

    @property
    def is_quiet(self) -> bool:
        """Whether no transaction was open that had an id."""
        return self.xmin == self.xmax

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourcePosition:
        return cls(**{**data, "tables": tuple(data["tables"])})

    def difference(self, now: SourcePosition) -> str | None:
        """Why ids of then mean nothing now, in words."""
        # Ids that were given out and lost may be given out again, so no other timeline will do.
        fate, _ = self.server.fate(now.server, lambda _: None)
        if fate is Fate.OTHER_SERVER:
            return f"it was server {self.system} and is now {now.system}"
        if fate is Fate.OTHER_DATABASE:
            return f"it was database {self.database} of its server and is now {now.database}"
        if fate is Fate.SET_BACK:
            return f"its log was at {self.lsn} and is now at {now.lsn}: it was restored"
        if fate is not Fate.SAME:
            return (
                f"it was on timeline {self.timeline} and is now on {now.timeline}: it was restored "
                "or failed over"
            )
        return None

    @property
    def server(self) -> Server:
        return Server(self.system, self.database, self.timeline, self.lsn)


def loaded_position(watermark: Watermark) -> SourcePosition | None:
    """Where the source stood when everything up to the watermark was loaded.

    None of that holds of a watermark that a person has moved, except which server it belongs to.
    """
    found = None if watermark.value is None else _recorded(watermark, "standing")
    if found is None or watermark.value is None or found.xmin == watermark.value:
        return found
    return replace(found, xmin=watermark.value, timeline=0, lsn="0/0", cursor=None)


def pass_position(watermark: Watermark) -> SourcePosition | None:
    """Where the source stood when the pass began that is not finished yet."""
    return None if watermark.position is None else _recorded(watermark, "pass")


def position_after(batch: Batch, watermark: Watermark) -> dict[str, Any]:
    """What stays recorded when a load leaves the watermark where it is."""
    if batch.kind in (BatchKind.FULL, BatchKind.WRITTEN):
        return {}
    before = watermark.declaration or {}
    return {name: before[name] for name in ("standing", "pass") if name in before}


def _recorded(watermark: Watermark, name: str) -> SourcePosition | None:
    found = (watermark.declaration or {}).get(name)
    return None if found is None else SourcePosition.from_json(found)


EPOCH = 1 << 32
# An id further back than this is brought forward before the lower halves can come round again.
FAR = 1 << 30


def widen(xid: int, next_xid: int) -> int:
    """The greatest 64-bit id below `next_xid` that has this lower half.

    A row that a snapshot shows was written before the snapshot's xmax, so this is its id, unless it
    is older than a whole round: then it looks newer than it is, and is read once too often.
    """
    newest = next_xid - 1
    return newest - (newest - xid) % EPOCH


def is_since(xid: int, low: int, next_xid: int) -> bool:
    """Whether a row with this 32-bit id may have been written by `low` or a later transaction."""
    return widen(xid, next_xid) >= low


SYSTEM_COLUMNS = ("xmin", "tableoid")

# As model/xid.py has it. The subqueries are evaluated once, and in the reader's own snapshot.
_NEWEST = "pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint - 1"
_SINCE = (
    f"(((SELECT {_NEWEST}) - xmin::text::bigint) & {EPOCH - 1})"
    f" <= (SELECT {_NEWEST} - {{low}}::bigint)"
)

_BATCH_KINDS = (BatchKind.WRITTEN, BatchKind.RANGE, BatchKind.TIE, BatchKind.FULL)

_STANDING = """
SELECT pg_snapshot_xmin(s)::text, pg_snapshot_xmax(s)::text FROM pg_current_snapshot() s
"""

_TABLES = """
WITH RECURSIVE tree AS (
    SELECT %s::oid AS oid
    UNION
    SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
)
SELECT c.oid::bigint, c.relkind::text, am.amname, c.oid::regclass::text
FROM tree JOIN pg_class c ON c.oid = tree.oid LEFT JOIN pg_am am ON am.oid = c.relam
WHERE c.relkind <> 'p' ORDER BY c.oid
"""


@dataclass(frozen=True, slots=True)
class XminFilter:
    """A source whose rows are found so; a cursor may bound how far back they are looked for."""

    cursor: CursorColumn | None = None
    lookback: str | int | None = None
    nullable: bool = False
    """whether rows may lack the cursor; they are always looked at"""

    def condition(
        self, batch: Batch, compare_key: Callable[[str, tuple[str, ...]], sql.Composed]
    ) -> sql.Composed:
        """The WHERE clause of a batch; ranges are half open here: low <= id < high."""
        assert batch.kind in _BATCH_KINDS
        parts: list[sql.Composable] = []
        if batch.kind in (BatchKind.WRITTEN, BatchKind.RANGE) and batch.low is not None:
            parts.append(self._since(batch, batch.low))
        if batch.kind in (BatchKind.TIE, BatchKind.RANGE) and batch.high is not None:
            parts.append(sql.SQL("NOT {}").format(self._since(batch, batch.high)))
        if batch.key_low is not None:
            parts.append(compare_key(">", batch.key_low))
        if batch.key_high is not None:
            parts.append(compare_key("<=", batch.key_high))
        return sql.SQL(" AND ").join(parts or [sql.SQL("true")])

    def _since(self, batch: Batch, low: str) -> sql.Composed:
        since: sql.Composable = sql.SQL(_SINCE).format(low=sql.Literal(low))
        if self.cursor is not None and batch.reached is not None:
            since = sql.SQL("({} AND {})").format(self._within(batch.reached), since)
        if batch.tables is not None:
            known = sql.Literal(list(batch.tables))
            since = sql.SQL("({} OR NOT tableoid OPERATOR(pg_catalog.=) ANY ({}::oid[]))").format(
                since, known
            )
        return sql.SQL("({})").format(since)

    def _within(self, reached: str) -> sql.Composed:
        """Whether the cursor lies no further back than the lookback."""
        assert self.cursor is not None
        name, kind = sql.Identifier(self.cursor.name), sql.SQL(self.cursor.type.value)
        if self.cursor.type.is_integer:
            low: sql.Composable = sql.SQL("{}::{}").format(
                sql.Literal(_floor(int(reached) - int(self.lookback or 0), self.cursor.type)), kind
            )
        else:
            low = sql.SQL("({}::{} - {}::interval)::{}").format(
                sql.Literal(reached), kind, sql.Literal(str(self.lookback)), kind
            )
        within = sql.SQL("{} >= {}").format(name, low)
        return (
            sql.SQL("({} OR {} IS NULL)").format(within, name)
            if self.nullable
            else sql.SQL("{}").format(within)
        )


def _floor(value: int, kind: CursorType) -> int:
    """No lower than the type goes, so that an index on the column serves."""
    bits = {CursorType.SMALLINT: 15, CursorType.INTEGER: 31, CursorType.BIGINT: 63}[kind]
    lowest: int = -(1 << bits)
    return max(value, lowest)


@dataclass(frozen=True, slots=True)
class PhysicalTable:
    """A table that holds rows of the source."""

    oid: int
    kind: str
    access_method: str | None
    name: str


def parts_of(connection: Connection, oid: int) -> list[PhysicalTable]:
    """The tables that hold the rows of a table."""
    return [PhysicalTable(*row) for row in connection.execute(_TABLES, (oid,))]


def read_position(
    connection: Connection, oid: int, relation: sql.Composable, cursor: CursorColumn | None
) -> SourcePosition:
    """Where the source stands in the snapshot of this session; not for a standby."""
    row = connection.execute(_STANDING).fetchone()
    assert row is not None
    xmin, xmax = row
    server = read_server(connection)
    return SourcePosition(
        xmin=xmin,
        xmax=xmax,
        system=server.system,
        database=server.database,
        timeline=server.timeline,
        lsn=server.lsn,
        tables=tuple(part.oid for part in parts_of(connection, oid)),
        cursor=None if cursor is None else _highest(connection, relation, cursor),
        column=None if cursor is None else column_words(cursor),
    )


def column_words(cursor: CursorColumn) -> str:
    """A cursor by name and type."""
    return f"{cursor.name} {cursor.type}"


def _highest(connection: Connection, relation: sql.Composable, cursor: CursorColumn) -> str | None:
    """The highest cursor, though never above the source's clock: that one row would hide others."""
    name = sql.Identifier(cursor.name)
    zone = sql.SQL("(SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'TimeZone')")
    local = sql.SQL("pg_catalog.clock_timestamp() AT TIME ZONE {}").format(
        sql.Literal(cursor.timezone) if cursor.timezone else zone
    )
    clocks: dict[CursorType, sql.Composable] = {
        CursorType.TIMESTAMPTZ: sql.SQL("pg_catalog.clock_timestamp()"),
        CursorType.TIMESTAMP: local,
        CursorType.DATE: sql.SQL("({})::date").format(local),
    }
    highest: sql.Composable = sql.SQL("pg_catalog.max({})").format(name)
    if cursor.type in clocks:
        # Without a row there is nothing to look back from.
        highest = sql.SQL("CASE WHEN {highest} IS NOT NULL THEN least({highest}, {clock}) END")
        highest = highest.format(
            highest=sql.SQL("pg_catalog.max({})").format(name), clock=clocks[cursor.type]
        )
    row = connection.execute(
        sql.SQL("SELECT ({})::text FROM {}").format(highest, relation)
    ).fetchone()
    return row[0] if row else None


_SNAPSHOT = 'changes = "snapshot"'
_RELATION_KINDS = {
    RelationKind.VIEW: "a view",
    RelationKind.FOREIGN: "a foreign table",
    RelationKind.QUERY: "a query",
}


def check_declared(sync: Sync) -> None:
    """Refuse what the declaration alone shows."""
    name = f"sync {sync.name}: {_SNAPSHOT}"
    if sync.mode is Mode.REPLACE:
        raise DeclarationError(
            f"{name} loads what has changed, and replace loads everything each time",
            'use mode = "merge", or remove changes',
        )
    if sync.mode is Mode.APPEND and not sync.key:
        raise DeclarationError(
            f"{name} reads some rows twice, and append without a key would add them again",
            'use mode = "merge", or declare a key, so that every version is kept once',
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f"{name} sees only the rows that were written, so it cannot tell which of several "
            'with one key is the newest, as duplicates = "newest" asks for',
            'choose a unique key, or use changes = "cursor"',
        )
    if (sync.cursor is None) != (sync.lookback in (None, 0)):
        lacking, given = (
            ("lookback", "cursor") if sync.cursor is not None else ("cursor", "lookback")
        )
        raise DeclarationError(
            f"{name} has a {given} and no {lacking}: together they say how far back rows are "
            "looked for",
            f"declare the {lacking} too, or remove the {given} to look at the whole table",
        )
    if sync.null_cursor in (NullPolicy.RAISE, NullPolicy.EXCLUDE):
        raise DeclarationError(
            f'{name} loads rows without a cursor too, so null_cursor = "{sync.null_cursor}" means '
            "nothing",
            "remove it, or leave such rows out with where",
        )


def check_source(
    connection: Connection, table: Table, cursor: CursorColumn | None, sync: Sync
) -> None:
    """Refuse a source that does not show which transaction wrote a row."""
    name, relation = f"sync {sync.name}: {_SNAPSHOT}", table.relation
    other = 'use changes = "cursor"'
    if table.kind in _RELATION_KINDS:
        what = _RELATION_KINDS[table.kind]
        shown = what if table.kind is RelationKind.QUERY else f"{relation} is {what}, and {what}"
        raise DeclarationError(
            f"{name} needs a table: {shown} does not show which transaction wrote a row",
            f"sync the table behind it, or {other}",
        )
    if cursor is not None and cursor.type is CursorType.XID8:
        raise DeclarationError(
            f"{name} beside cursor {cursor.name}: an xid8 already tells which transaction wrote "
            "a row",
            other,
        )
    refuse_standby(connection, sync)
    if not table.is_wholly_readable:
        role = connection.info.user
        raise SourceError(
            f"{name} reads which transaction wrote a row, and role {role} may read only some "
            f"columns of {relation}",
            f"GRANT SELECT ON {relation} TO {role}",
        )
    for part in parts_of(connection, table.oid):
        if part.kind == "f":
            raise DeclarationError(
                f"{name}: {part.name}, a part of {relation}, is a foreign table, which does not "
                "show which transaction wrote a row",
                other,
            )
        if part.access_method != "heap":
            raise DeclarationError(
                f"{name}: {part.name} is stored by {part.access_method}, which need not show which "
                "transaction wrote a row",
                other,
            )


def check_xid_cursor(connection: Connection, sync: Sync) -> None:
    """Refuse what a cursor that is the id of a transaction cannot do."""
    refuse_standby(connection, sync)
    if sync.lake_target and sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} is an xid8, which is text in a lake and tells "
            'no newer row from an older one there, as duplicates = "newest" asks for',
            "choose a unique key, or another cursor",
        )


def refuse_standby(connection: Connection, sync: Sync) -> None:
    """Refuse a server that does not show which transactions are open."""
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise SourceError(
            f"sync {sync.name}: connection {sync.source.connection} is a standby, which does not "
            "show which transactions are open, so rows would be missed",
            "connect to the primary; a standby can be followed by a timestamp, with settle and "
            "lookback",
        )
