"""Iceberg rows copied into a Postgres session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import BatchKind
from tidegate.core.errors import BusyError, DestinationError
from tidegate.core.shape import Shape
from tidegate.core.watermark import Watermark
from tidegate.iceberg.metadata import lake_table, read_metadata
from tidegate.iceberg.rows import SnapshotRows
from tidegate.iceberg.table import IcebergTable, PublishEvidence, Snapshot
from tidegate.ledger.iceberg import Intents
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.targets.iceberg.recovery import find_unrecorded
from tidegate.postgres.connection import Connection
from tidegate.postgres.types import lake_type, postgres_type

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 10_000
# How the words of these types differ between Arrow and Postgres, before Christ and after 9999.
_NUMBERED = {"date": "integer", "timestamp": "bigint", "timestamp_ntz": "bigint"}
_EPOCH = "timestamp '1970-01-01'"
_MICROSECONDS = 86_400_000_000


def copied_type(kind: str, what: str) -> str:
    """The Postgres type in which a column of this type, in Spark's words, is copied."""
    found = _NUMBERED.get(kind) or postgres_type(kind)
    if found is None:
        raise DestinationError(
            f"{what} is of type {kind}, which Postgres has no equal of",
            "only flat columns of the types that Tidegate loads can be compared",
        )
    return found


def value_of(kind: str, column: str) -> str:
    """A copied column as the value it stands for, in the SQL of Postgres."""
    if kind == "date":
        return f"(date '1970-01-01' + {column})"
    if kind not in _NUMBERED:
        return column
    # In days and the rest of one: an interval of more microseconds would be rounded.
    moment = (
        f"({_EPOCH} + make_interval(days => ({column} / {_MICROSECONDS})::integer)"
        f" + make_interval(secs => ({column} % {_MICROSECONDS}) / 1e6::float8))"
    )
    return f"({moment} AT TIME ZONE 'UTC')" if kind == "timestamp" else moment


def csv_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows as CSV: what is NULL is not quoted, all else is."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for start in range(0, batch.num_rows, _ROWS):
        part = batch.slice(start, _ROWS)
        columns = [_texts(column) for column in part.columns]
        names = [str(number) for number in range(len(columns))]
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), sink, options)
        yield sink.getvalue().to_pybytes()


def _texts(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = column.storage, kind.storage_type
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_fixed_size_binary(kind):
        return _uuids(column)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = column.to_pylist()
        return pa.array([None if one is None else f"\\x{one.hex()}" for one in values], pa.string())
    return column.cast(pa.string())


def _uuids(column: Any) -> Any:
    from uuid import UUID

    import pyarrow as pa

    return pa.array(
        [None if one is None else str(UUID(bytes=one)) for one in column.to_pylist()], pa.string()
    )


Kinds = Sequence[tuple[str, str]]
"""names with their types, in Spark's words"""


@dataclass(frozen=True, slots=True)
class PostgresCopy:
    """A temporary table with the rows that were copied into it."""

    connection: Connection
    table: sql.Identifier
    kinds: Kinds

    def fill(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Copy rows in, as they come."""
        rows = 0
        statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(self.table)
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in batches:
                rows += batch.num_rows
                for lines in csv_lines(batch):
                    copy.write(lines)
        return rows

    def value_type(self, name: str) -> str:
        """The type of a column's values."""
        return written_type(dict(self.kinds)[name])

    @property
    def rows(self) -> sql.Composed:
        """A query of the rows under their own names, with their values."""
        values = [
            sql.SQL("{} AS {}").format(sql.SQL(value_of(kind, f"c{number}")), sql.Identifier(name))
            for number, (name, kind) in enumerate(self.kinds)
        ]
        return sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(values), self.table)


@contextmanager
def copy_to_postgres(connection: Connection, name: str, kinds: Kinds) -> Iterator[PostgresCopy]:
    """An empty mirror, which is gone in the end."""
    table = sql.Identifier("pg_temp", name)
    columns = ", ".join(
        f"c{number} {copied_type(kind, f'column {column}')}"
        for number, (column, kind) in enumerate(kinds)
    )
    connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(table, sql.SQL(columns)))
    try:
        yield PostgresCopy(connection, table, kinds)
    finally:
        if not connection.closed:
            connection.execute(sql.SQL("DROP TABLE {}").format(table))


def field_kinds(table: IcebergTable, names: Iterable[str]) -> list[tuple[str, str]]:
    """These columns with the types that the lake has for them."""
    kinds: list[tuple[str, str]] = []
    for name in names:
        field = table.field(name)
        if field is None:
            raise DestinationError(f"{table.relation} has no column {name}", None)
        kinds.append((name, field.type))
    return kinds


def lake_columns(source: PostgresSource, kinds: Kinds) -> dict[str, sql.Composable]:
    """The source's columns as the values that the lake holds for them, in the lake's own types."""
    wanted = dict(kinds)
    found: dict[str, sql.Composable] = {}
    for column in source.columns:
        own = "string" if column.via_text else lake_type(column.wire)
        value = sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(written_type(own)))
        kind = wanted.get(column.name, own)
        if kind != own:
            value = sql.SQL("{}::{}").format(value, sql.SQL(written_type(kind)))
        found[column.name] = value
    return found


def newest_in_lake(rows: sql.Composable, shape: Shape) -> sql.Composed:
    """One row per key, chosen as `lake.statements.newest_rows` has Spark choose it."""

    def descending(name: str) -> sql.Composed:
        column = shape.column(name)
        text = column is not None and column.target_type == "string"
        return sql.SQL("{}{} DESC NULLS LAST").format(
            sql.Identifier(name), sql.SQL(' COLLATE "C"' if text else "")
        )

    key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
    order = [descending(shape.cursor)] if shape.cursor else []
    order += [descending(name) for name in shape.names]
    return sql.SQL("SELECT DISTINCT ON ({}) * FROM ({}) d ORDER BY {}, {}").format(
        key, rows, key, sql.SQL(", ").join(order)
    )


def written_type(kind: str) -> str:
    """The Postgres type of a column's values, given in Spark's words."""
    found = postgres_type(kind)
    assert found is not None
    return found


_TRIES = 10
# What maintenance commits: other files, the same rows.
_SAME_ROWS = "replace"


@dataclass(frozen=True, slots=True)
class IcebergState:
    """What main holds, and up to where; `table` is None when there is none."""

    watermark: Watermark
    table: IcebergTable | None
    rows: SnapshotRows | None
    unrecorded: str | None = None
    """a load that is in main and not in the ledger yet"""
    put_in: int = 0
    """how many rows the loads say that they put in"""

    @property
    def snapshot_id(self) -> int | None:
        return None if self.table is None else self.table.main

    def strangers(self) -> Iterator[Snapshot]:
        """Commits of others since the last load that changed rows, newest first."""
        for snapshot in () if self.table is None else self.table.ancestors():
            if snapshot.update_id is not None:
                return
            if not _is_same(snapshot):
                yield snapshot


def read_iceberg_state(context: Context, sync: Sync, connection: Connection) -> IcebergState:
    """The table at one snapshot of main and the watermark of just what is in it.

    Main moves first and the ledger follows. While main stays, the ledger says at most what is in
    it, and what it does not say yet is among its intents.
    """
    catalog = context.catalog(sync.target.connection)
    relation = sync.target.relation
    for _ in range(_TRIES):
        metadata = read_metadata(catalog, relation)
        watermark, moves, put_in = _read_ledger(context, sync, connection)
        again = read_metadata(catalog, relation)
        if metadata is None or again is None:
            if metadata is again:
                return IcebergState(watermark, None, None)
            continue
        if again.current_snapshot_id != metadata.current_snapshot_id:
            continue
        table = lake_table(relation, again)
        rows = SnapshotRows(catalog, relation, again, table.main)
        for update_id, base, move in moves:
            if table.see(update_id, base) is PublishEvidence.PUBLISHED and _continues(
                move, watermark
            ):
                moved = _moved(watermark, update_id, move)
                return IcebergState(moved, table, rows, update_id, put_in + int(move["rows"]))
        return _catch_up(
            context, sync, connection, IcebergState(watermark, table, rows, None, put_in)
        )
    raise BusyError(f"{sync.target} is being written all the while", "try again when it is quiet")


def _is_same(snapshot: Snapshot) -> bool:
    """Whether it has the rows of its parent: maintenance, or the root of a table's first branch."""
    is_maintenance = snapshot.summary.get("operation") == _SAME_ROWS
    return is_maintenance or snapshot.summary.get("changed-partition-count") == "0"


def _read_ledger(
    context: Context, sync: Sync, connection: Connection
) -> tuple[Watermark, list[tuple[str, int | None, Mapping[str, Any]]], int]:
    """Watermark and intents; intents first, so that one that is settled meanwhile is seen twice."""
    ledger = context.ledger(sync.target.connection)
    name = str(sync.target.relation)
    intents = Intents(ledger).of_table(connection, name)
    watermarks = Watermarks(ledger)
    watermark = watermarks.get(connection, sync.pipeline, name)
    moves = [(one.update_id, one.base, one.move) for one in intents if one.move is not None]
    return watermark, moves, watermarks.rows_put_in(connection, name) if watermark.version else 0


def _catch_up(
    context: Context, sync: Sync, connection: Connection, view: IcebergState
) -> IcebergState:
    """The same with what a ledger that is older than the table does not know of."""
    assert view.table is not None
    if context.catalog(sync.target.connection).is_embedded:
        return view
    markers = Markers(context.ledger(sync.target.connection))
    for load in find_unrecorded(
        view.table,
        view.watermark,
        lambda update_id: markers.exists(connection, update_id, sync.target.relation),
        str(sync.target),
        sync.name,
    ):
        put_in = load.rows + (0 if load.kind == BatchKind.FULL else view.put_in)
        watermark = view.watermark.after_mark(load)
        view = replace(view, watermark=watermark, unrecorded=load.update_id, put_in=put_in)
    return view


def _continues(move: Mapping[str, Any], watermark: Watermark) -> bool:
    start = (watermark.pipeline, watermark.generation, watermark.version)
    return (move["pipeline"], move["generation"], move["version"]) == start


def _moved(watermark: Watermark, update_id: str, move: Mapping[str, Any]) -> Watermark:
    """The watermark as whoever heals the intent will leave it."""
    return replace(
        watermark,
        value=move["value"],
        position=None if move["position"] is None else tuple(move["position"]),
        version=watermark.version + 1,
        rows_synced=watermark.rows_synced + move["rows"],
        update_id=update_id,
        declaration=move["declaration"] or watermark.declaration,
    )
