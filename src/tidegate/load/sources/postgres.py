"""A Postgres table or view, read in bounded batches from one snapshot at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.core.batch import Batch, BatchKind, cut
from tidegate.core.errors import SourceError
from tidegate.core.relation import Column, Table
from tidegate.core.watermark import CursorType, Horizon, NullPolicy, Watermark
from tidegate.load.sources.horizon import CursorColumn, readable
from tidegate.load.sources.key_order import KeyOrder
from tidegate.load.sources.xmin import SYSTEM_COLUMNS, SourcePosition, XminFilter, read_position
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, holds_own_sql, operator

# Below this share of the table an index on the cursor beats a scan of all blocks.
_SCAN_SHARE = 0.25
_ROWS_PER_PARTITION = 125_000
_BYTES_PER_PARTITION = 16 << 20
_PAGE_BYTES = 8192


@dataclass(frozen=True, slots=True)
class PostgresSource:
    """What is read: a relation, its columns, its key and its cursor."""

    table: Table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    cursor: CursorColumn | None
    null_policy: NullPolicy | None
    lookback: str | int | None
    batch_rows: int
    where: str | None = None
    tie_key: tuple[str, ...] | None = None
    """what splits a large tie, where rows have no key in the target"""
    written: XminFilter | None = None
    """where rows are found by the transaction that wrote them; there is no cursor then"""

    @property
    def relation(self) -> sql.Composable:
        system = () if self.written is None else SYSTEM_COLUMNS
        return readable(self.table, self.where, self.read_columns, system)

    @property
    def is_whole(self) -> bool:
        """Whether everything is read each time."""
        return self.cursor is None and self.written is None

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Every column that is loaded, or needed to order and tell apart what is."""
        cursor = () if self._leading is None else (self._leading.name,)
        names = (*(column.name for column in self.columns), *self._splits, *cursor)
        return tuple(dict.fromkeys(names))

    @property
    def ordered_by(self) -> CursorColumn:
        """The cursor, where there must be one."""
        assert self._leading is not None
        return self._leading

    @property
    def _leading(self) -> CursorColumn | None:
        """The column by which an index leads to the rows."""
        return self.cursor if self.written is None else self.written.cursor

    @property
    def cursor_type(self) -> CursorType | None:
        """What the watermark is a value of."""
        if self.written is not None:
            return CursorType.XID8
        return None if self.cursor is None else self.cursor.type

    @property
    def cursor_identifier(self) -> sql.Identifier:
        return sql.Identifier(self.ordered_by.name)

    @property
    def reads_by_index(self) -> bool:
        """Whether an index leads to the rows above a cursor value."""
        column = self._leading
        return column is not None and column.name in self.table.leading_index_columns

    @property
    def _order(self) -> sql.Composable:
        """The cursor as something that has a maximum: xid8 has one only from version 15 on."""
        if self.ordered_by.type is CursorType.XID8:
            return sql.SQL("{}::text::numeric").format(self.cursor_identifier)
        return self.cursor_identifier

    @property
    def lake_order(self) -> str | None:
        """The column of a lake that tells newer rows from older ones; an xid8 is text there."""
        if self.cursor is None or self.cursor.type is CursorType.XID8:
            return None
        return self.cursor.name

    @property
    def _splits(self) -> tuple[str, ...]:
        return self.key or self.tie_key or ()

    @property
    def _keys(self) -> KeyOrder:
        return KeyOrder(self.table, self._splits, self.relation)

    @property
    def _cast(self) -> sql.SQL:
        return sql.SQL(self.ordered_by.type.value)

    def value(self, text: str) -> sql.Composed:
        """A cursor value as a typed literal."""
        return sql.SQL("{}::{}").format(sql.Literal(text), self._cast)

    def next_batch(
        self, connection: Connection, watermark: Watermark, horizon: Horizon
    ) -> Batch | None:
        """The next slice above the watermark, or None when there is nothing to load."""
        if horizon.high is None:
            return None
        if watermark.position is not None:
            tie, *key = watermark.position
            part = self._tie_part(connection, watermark.value, tie, tuple(key))
            if part.rows:
                return part
            # A tie is never closed by nothing, only by rows that come after it.
            return self._slice(connection, BatchKind.RANGE, tie, horizon.high)
        return self._slice(connection, BatchKind.RANGE, watermark.value, horizon.high)

    def full_batch(self, connection: Connection, horizon: Horizon) -> Batch:
        """Everything, as one batch; the watermark then stands at the horizon.

        Rows with a key are read beyond the horizon too: what is not in the batch leaves the
        target, and a row must not go there because a transaction is open here. They come again.
        """
        if self.cursor is None:
            whole = Batch(BatchKind.FULL, None, horizon.high)
            return replace(whole, rows=self.count(connection, whole))
        if horizon.high is None and self._count(connection, self._between(None, None))[0]:
            raise SourceError(
                f"{self.table.relation} is held back by {horizon.held_by or 'its settle time'}",
                "run again when that has ended",
            )
        count, highest = self._count(connection, self._between(None, horizon.high))
        whole = Batch(BatchKind.FULL, None, highest or horizon.high, rows=count)
        if self.key or self.null_policy is NullPolicy.INCLUDE:
            return replace(whole, rows=self.count(connection, whole))
        return whole

    def lookback_batch(
        self, connection: Connection, watermark: str, from_value: str | None
    ) -> Batch | None:
        """The next slice of (W - lookback, W], starting after `from_value`."""
        if self.lookback in (None, 0):
            return None
        low = from_value if from_value is not None else self.lookback_low(connection, watermark)
        return self._slice(connection, BatchKind.LOOKBACK, low, watermark)

    def null_batch(self, connection: Connection) -> Batch | None:
        """Rows without a cursor value, as the policy says."""
        if self.null_policy in (None, NullPolicy.EXCLUDE):
            return None
        count, _ = self._count(connection, sql.SQL("{} IS NULL").format(self.cursor_identifier))
        if count == 0:
            return None
        if self.null_policy is NullPolicy.RAISE:
            raise SourceError(
                f"{count} rows of {self.table.relation} have no {self.ordered_by.name}",
                'fill them in, or set null_cursor = "include" or "exclude"',
            )
        return Batch(BatchKind.NULLS, rows=count)

    def condition(self, batch: Batch) -> sql.Composed:
        """The WHERE clause of a batch."""
        if self.written is not None:
            return self.written.condition(batch, self._keys.compare)
        if self.cursor is None:
            return sql.SQL("{}").format(sql.SQL("true"))
        if batch.kind is BatchKind.NULLS:
            return sql.SQL("{} IS NULL").format(self.cursor_identifier)
        if batch.kind is BatchKind.TIE:
            assert batch.high is not None
            parts: list[sql.Composable] = [
                sql.SQL("{} = {}").format(self.cursor_identifier, self.value(batch.high))
            ]
            if batch.key_low is not None:
                parts.append(self._keys.compare(">", batch.key_low))
            if batch.key_high is not None:
                parts.append(self._keys.compare("<=", batch.key_high))
            return sql.SQL(" AND ").join(parts)
        if batch.kind is BatchKind.BACKFILL:
            assert batch.low is not None
            assert batch.high is not None
            return sql.SQL("{c} >= {} AND {c} < {}").format(
                self.value(batch.low), self.value(batch.high), c=self.cursor_identifier
            )
        if batch.kind is BatchKind.FULL and self.key:
            condition = self._present()
        else:
            condition = self._between(batch.low, batch.high)
        if batch.kind is BatchKind.FULL and self.null_policy is NullPolicy.INCLUDE:
            return sql.SQL("({} OR {} IS NULL)").format(condition, self.cursor_identifier)
        return condition

    def fingerprint(self, connection: Connection, batch: Batch) -> str:
        """Equal for two readings of a batch when no row of it changed."""
        row = connection.execute(
            sql.SQL(
                "SELECT count(*)::text || ':' || coalesce(pg_catalog.sum("
                "pg_catalog.hashtextextended({}::text, 0::bigint)), 0)::text FROM {} WHERE {}"
            ).format(
                sql.SQL("ROW({})").format(column_list(c.name for c in self.columns)),
                self.relation,
                self.condition(batch),
            )
        ).fetchone()
        assert row is not None
        return str(row[0])

    def read_statements(
        self,
        connection: Connection,
        batch: Batch,
        select: Sequence[sql.Composable],
        *,
        partitions: int | None,
        parallelism: int,
        where: sql.Composable | None = None,
    ) -> list[str]:
        """SELECT statements that together read the batch, one for each task.

        `where` says which rows these are, if the batch itself does not.
        """
        wanted = partitions or min(self._shares(batch), 2 * parallelism)
        condition = self.condition(batch) if where is None else where
        if wanted <= 1:
            slices: list[sql.Composable] = [condition]
        elif batch.kind is BatchKind.WRITTEN and self._leads_by_key(batch):
            slices = self._keys.slices(connection, condition, batch.rows, wanted)
        elif self._scans(batch):
            slices = self._block_slices(condition, wanted)
        elif self._leading is not None and batch.kind in (
            BatchKind.RANGE,
            BatchKind.LOOKBACK,
            BatchKind.BACKFILL,
            BatchKind.FULL,
            BatchKind.WRITTEN,
        ):
            slices = self._cursor_slices(connection, batch, condition, wanted)
        else:
            slices = [condition]
        columns = sql.SQL(", ").join(select)
        return [
            sql.SQL("SELECT {} FROM {} WHERE {}")
            .format(columns, self.relation, where)
            .as_string(connection)
            for where in slices
        ]

    def find_duplicate_key(self, connection: Connection) -> tuple[str, int] | None:
        """A key that rows share, and how many, unless an index rules it out."""
        if not self.key or self.table.proves_unique(self.key):
            return None
        names = column_list(self.key)
        return connection.execute(
            sql.SQL(
                "SELECT ROW({})::text, count(*) FROM {} GROUP BY {} HAVING count(*) > 1 LIMIT 1"
            ).format(names, self.relation, names)
        ).fetchone()

    def _slice(
        self, connection: Connection, kind: BatchKind, low: str | None, high: str
    ) -> Batch | None:
        """At most batch_rows rows of (low, high], never ending inside a tie."""
        if low is None and 0 < self.table.estimated_rows <= self.batch_rows:
            # All of it, most likely; counted without putting it in order.
            count, highest = self._count(connection, self._between(low, high))
            if 0 < count <= self.batch_rows:
                return Batch(kind, low, highest, rows=count, is_last=True)
        row = connection.execute(
            sql.SQL(
                "WITH seen AS (SELECT {order} AS c FROM {relation} WHERE {where}"
                " ORDER BY {cursor} LIMIT {limit}),"
                " top AS (SELECT pg_catalog.max(c) AS c FROM seen)"
                " SELECT count(*), (SELECT c::text FROM top),"
                " pg_catalog.max(c) FILTER (WHERE c < (SELECT c FROM top))::text,"
                " count(*) FILTER (WHERE c < (SELECT c FROM top)) FROM seen"
            ).format(
                cursor=self.cursor_identifier,
                order=self._order,
                relation=self.relation,
                where=self._between(low, high),
                limit=sql.Literal(self.batch_rows + 1),
            )
        ).fetchone()
        assert row is not None
        rows, last, before_last, rows_before = row
        if rows == 0:
            return None
        end = cut(rows, self.batch_rows, last, before_last)
        if end.is_tie and kind is BatchKind.RANGE and self._splits:
            return self._tie_part(connection, low, last, None)
        if end.is_tie or end.high == last:
            return Batch(kind, low, last, rows=rows, is_last=rows <= self.batch_rows)
        return Batch(kind, low, end.high, rows=rows_before)

    def _tie_part(
        self, connection: Connection, low: str | None, value: str, after: tuple[str, ...] | None
    ) -> Batch:
        """The next batch_rows rows of one cursor value, in key order."""
        where: sql.Composable = sql.SQL("{} = {}").format(self.cursor_identifier, self.value(value))
        count, end = self._keys.cut(connection, where, after, self.batch_rows)
        return Batch(BatchKind.TIE, low, value, after, end, closes_tie=end is None, rows=count)

    def standing(self, connection: Connection) -> SourcePosition:
        """Where a source stands whose rows are found by their transactions."""
        cursor = None if self.written is None else self.written.cursor
        return read_position(connection, self.table.oid, self.relation, cursor)

    def written_batch(self, connection: Connection, start: Batch) -> Batch | None:
        """The next rows of a pass, in the order of their keys if there are more than batch_rows.

        `start` says since when, and after which key; None when the pass would begin with no row.
        """
        since = replace(start, key_low=None, key_high=None)
        if start.key_low is None and not (
            start.low is None and self.table.estimated_rows > 2 * self.batch_rows
        ):
            rows = self.count(connection, since)
            if rows == 0:
                return None
            if rows <= self.batch_rows:
                return replace(since, closes_tie=True, rows=rows, is_last=True)
        count, end = self._keys.cut(
            connection, self.condition(since), start.key_low, self.batch_rows
        )
        if count == 0 and start.key_low is None:
            return None
        closes = end is None
        return replace(start, key_high=end, closes_tie=closes, rows=count, is_last=closes)

    def count(self, connection: Connection, batch: Batch) -> int:
        """How many rows a batch has."""
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self.relation, self.condition(batch))
        ).fetchone()
        assert row is not None
        return int(row[0])

    def lookback_low(self, connection: Connection, watermark: str) -> str:
        """Where the lookback begins: W - lookback."""
        if self.ordered_by.type is CursorType.XID8:
            return str(max(0, int(watermark) - int(self.lookback or 0)))
        minus = (
            sql.SQL("({} - {})::text").format(
                self.value(watermark),
                sql.SQL("{}::numeric").format(sql.Literal(str(self.lookback))),
            )
            if self.ordered_by.type.is_integer
            else sql.SQL("({} - {}::interval)::{}::text").format(
                self.value(watermark), sql.Literal(str(self.lookback)), self._cast
            )
        )
        row = connection.execute(sql.SQL("SELECT {}").format(minus)).fetchone()
        assert row is not None
        return str(row[0])

    def _between(self, low: str | None, high: str | None) -> sql.Composed:
        parts: list[sql.Composable] = []
        if low is not None:
            # numeric for integers: a lookback may reach below the type's own range
            typed = (
                sql.SQL("{}::numeric").format(sql.Literal(low))
                if self.ordered_by.type.is_integer and not _fits(low, self.ordered_by.type)
                else self.value(low)
            )
            above = operator(">", "pg_catalog" if holds_own_sql(self.relation) else None)
            parts.append(sql.SQL("{} {} {}").format(self.cursor_identifier, above, typed))
        if high is not None:
            parts.append(sql.SQL("{} <= {}").format(self.cursor_identifier, self.value(high)))
        if not parts:
            parts.append(sql.SQL("{} IS NOT NULL").format(self.cursor_identifier))
        return sql.SQL(" AND ").join(parts)

    def _present(self) -> sql.Composed:
        """Rows that have a cursor which is not ahead of the clock."""
        if self.ordered_by.type.is_number:
            return self._between(None, None)
        return sql.SQL("{} <= {}").format(self.cursor_identifier, self.ordered_by.soon)

    def _count(self, connection: Connection, where: sql.Composable) -> tuple[int, str | None]:
        row = connection.execute(
            sql.SQL("SELECT count(*), pg_catalog.max({})::text FROM {} WHERE {}").format(
                self._order, self.relation, where
            )
        ).fetchone()
        assert row is not None
        return int(row[0]), row[1]

    def _shares(self, batch: Batch) -> int:
        """How many readers a batch deserves: by its rows, and by its bytes where rows are wide."""
        rows = max(self.table.estimated_rows, batch.rows, 1)
        size = self.table.pages * _PAGE_BYTES * batch.rows // rows
        return max(-(-batch.rows // _ROWS_PER_PARTITION), size // _BYTES_PER_PARTITION)

    def _scans(self, batch: Batch) -> bool:
        large = bool(batch.rows >= _SCAN_SHARE * max(self.table.estimated_rows, 1))
        return self.table.has_blocks and self.table.pages > 1 and (large or not self.reads_by_index)

    def _block_slices(self, condition: sql.Composable, wanted: int) -> list[sql.Composable]:
        pages = self.table.pages
        bounds = sorted({pages * step // wanted for step in range(1, wanted)} - {0})
        slices: list[sql.Composable] = []
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            parts: list[sql.Composable] = [condition]
            if low is not None:
                parts.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({low},0)")))
            if high is not None:
                parts.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({high},0)")))
            slices.append(sql.SQL(" AND ").join(parts))
        return slices

    def _cursor_slices(
        self, connection: Connection, batch: Batch, condition: sql.Composable, wanted: int
    ) -> list[sql.Composable]:
        shares = [step / wanted for step in range(1, wanted)]
        row = connection.execute(
            sql.SQL(
                "SELECT pg_catalog.percentile_disc({}::float8[]) WITHIN GROUP (ORDER BY {})::text[]"
                " FROM {} WHERE {}"
            ).format(sql.Literal(shares), self.cursor_identifier, self.relation, condition)
        ).fetchone()
        bounds = list(dict.fromkeys((row[0] if row else None) or []))
        slices: list[sql.Composable] = []
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            slices.append(sql.SQL("{} AND {}").format(condition, self._between(low, high)))
        if batch.kind is BatchKind.FULL and self.null_policy is NullPolicy.INCLUDE:
            slices.append(sql.SQL("{} IS NULL").format(self.cursor_identifier))
        if self.written is not None and self.written.nullable:
            slices.append(sql.SQL("{} AND {} IS NULL").format(condition, self.cursor_identifier))
        return slices

    def _leads_by_key(self, batch: Batch) -> bool:
        """Whether an index leads to the rows of a part of all keys."""
        part = batch.key_low is not None or batch.key_high is not None
        return part and self._splits[0] in self.table.leading_index_columns


def _fits(text: str, cursor_type: CursorType) -> bool:
    bits = {CursorType.SMALLINT: 15, CursorType.INTEGER: 31, CursorType.BIGINT: 63}[cursor_type]
    limit: int = 1 << bits
    return -limit <= int(text) < limit
