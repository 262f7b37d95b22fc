"""Rows of a lake in a temporary table of a Postgres session, in types that Postgres can compare.

Only the disk of that database is needed for them, not our memory, and they go with the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.errors import DestinationError
from tidegate.lake.texts import copied_type, csv_lines, value_of
from tidegate.model.lake import LakeTable
from tidegate.model.shape import Shape
from tidegate.postgres.connect import Connection
from tidegate.postgres.types import lake_type, postgres_type
from tidegate.sources.postgres import PostgresSource

if TYPE_CHECKING:
    import pyarrow as pa

Kinds = Sequence[tuple[str, str]]
"""names with their types, in Spark's words"""


@dataclass(frozen=True, slots=True)
class Mirror:
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
def mirror(connection: Connection, name: str, kinds: Kinds) -> Iterator[Mirror]:
    """An empty mirror, which is gone in the end."""
    table = sql.Identifier("pg_temp", name)
    columns = ", ".join(
        f"c{number} {copied_type(kind, f'column {column}')}"
        for number, (column, kind) in enumerate(kinds)
    )
    connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(table, sql.SQL(columns)))
    try:
        yield Mirror(connection, table, kinds)
    finally:
        if not connection.closed:
            connection.execute(sql.SQL("DROP TABLE {}").format(table))


def field_kinds(table: LakeTable, names: Iterable[str]) -> list[tuple[str, str]]:
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
