"""Rows found by the transaction that wrote them: the conditions, and where the source stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psycopg import sql

from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import CursorType
from tidegate.model.standing import Standing
from tidegate.model.xid import EPOCH
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connect import Connection
from tidegate.sources.horizon import CursorColumn

SYSTEM_COLUMNS = ("xmin", "tableoid")

# As model/xid.py has it. The subqueries are evaluated once, and in the reader's own snapshot.
_NEWEST = "pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint - 1"
_SINCE = (
    f"(((SELECT {_NEWEST}) - xmin::text::bigint) & {EPOCH - 1})"
    f" <= (SELECT {_NEWEST} - {{low}}::bigint)"
)

_KINDS = (BatchKind.WRITTEN, BatchKind.RANGE, BatchKind.TIE, BatchKind.FULL)

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
class Written:
    """A source whose rows are found so; a cursor may bound how far back they are looked for."""

    cursor: CursorColumn | None = None
    lookback: str | int | None = None
    nullable: bool = False
    """whether rows may lack the cursor; they are always looked at"""

    def condition(
        self, batch: Batch, compare_key: Callable[[str, tuple[str, ...]], sql.Composed]
    ) -> sql.Composed:
        """The WHERE clause of a batch; ranges are half open here: low <= id < high."""
        assert batch.kind in _KINDS
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
class Part:
    """A table that holds rows of the source."""

    oid: int
    kind: str
    access_method: str | None
    name: str


def parts_of(connection: Connection, oid: int) -> list[Part]:
    """The tables that hold the rows of a table."""
    return [Part(*row) for row in connection.execute(_TABLES, (oid,))]


def read_standing(
    connection: Connection, oid: int, relation: sql.Composable, cursor: CursorColumn | None
) -> Standing:
    """Where the source stands in the snapshot of this session; not for a standby."""
    row = connection.execute(_STANDING).fetchone()
    assert row is not None
    xmin, xmax = row
    server = read_server(connection)
    return Standing(
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
