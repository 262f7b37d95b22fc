"""A sample of the user's source, read once in a read-only session and kept in a pool database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import sql

from tidegate.errors import SourceError
from tidegate.model.column import RelationKind, Table
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified
from tidegate.testing.invention import ROWS, invented_columns

SAMPLE = sql.Identifier("tidegate_prove", "sample")
# Up to here (40 MB) the whole table is looked through for the rows written last.
_SMALL_PAGES = 5_000
_TIMEOUT = "120s"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows to take: at most `rows`, chosen by `seed`, or those with one of `keys`."""

    rows: int
    seed: int
    keys: tuple[str, ...] = ()


def values(table: Table, prefix: str = "") -> sql.Composed:
    """`v1, v2, …`: the sample's columns, whatever the table calls its own."""
    names = (f"{prefix}v{number + 1}" for number in range(len(table.columns)))
    return sql.SQL(", ").join(sql.SQL(name) for name in names)


def column_value(table: Table, name: str) -> sql.SQL:
    """The sample's column for a column of the table."""
    return sql.SQL(f"v{table.column_names.index(name) + 1}")


def make_sample_table(copy: Connection, table: Table, types: dict[str, str]) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(column_value(table, column.name), sql.SQL(types[column.name]))
        for column in table.columns
    )
    copy.execute("CREATE SCHEMA tidegate_prove")
    copy.execute(
        sql.SQL(
            "CREATE TABLE {} (place int, written bigint, step int, late boolean, after int, {})"
        ).format(SAMPLE, columns)
    )


def read_sample(
    source: Connection,
    copy: Connection,
    table: Table,
    key: tuple[str, ...],
    cursor: str | None,
    wanted: Wanted,
) -> int:
    """Copy the rows over as text, as each server prints and reads its own; how many they are."""
    query = _query(table, key, cursor, wanted)
    source.execute("SELECT set_config('statement_timeout', %s, true)", (_TIMEOUT,))
    arriving = sql.SQL("COPY {} (written, {}) FROM STDIN").format(SAMPLE, values(table))
    with (
        source.cursor() as reader,
        reader.copy(sql.SQL("COPY ({}) TO STDOUT").format(query)) as leaving,
        copy.cursor() as writer,
        writer.copy(arriving) as taking,
    ):
        for data in leaving:
            taking.write(data)
    return _count(copy)


def invent_sample(copy: Connection, table: Table, types: dict[str, str]) -> int:
    copy.execute(
        sql.SQL(
            "INSERT INTO {} (written, {}) SELECT -n, {} FROM generate_series(1, {}) AS n"
        ).format(SAMPLE, values(table), invented_columns(copy, table, types), sql.Literal(ROWS))
    )
    return _count(copy)


def _count(copy: Connection) -> int:
    row: Any = copy.execute(sql.SQL("SELECT count(*) FROM {}").format(SAMPLE)).fetchone()
    return int(row[0])


def _query(
    table: Table, key: tuple[str, ...], cursor: str | None, wanted: Wanted
) -> sql.Composable:
    stored = table.kind in (RelationKind.TABLE, RelationKind.PARTITIONED)
    # How long ago in transactions; an age that has wrapped round is the oldest of all.
    written = sql.SQL("CASE WHEN age(xmin) < 0 THEN 2147483647 ELSE age(xmin) END AS written")
    columns = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(sql.Identifier(name), column_value(table, name))
        for name in table.column_names
    )
    parts = {
        "written": written if stored else sql.SQL("0 AS written"),
        "columns": columns,
        "values": values(table),
        "table": qualified(table.relation),
        "newest": sql.SQL("ORDER BY {} DESC NULLS LAST").format(sql.Identifier(cursor))
        if cursor
        else sql.SQL(""),
        "seed": sql.Literal(wanted.seed),
        "rows": sql.Literal(wanted.rows),
        "half": sql.Literal((wanted.rows + 1) // 2),
    }
    if wanted.keys:
        if not key:
            raise SourceError(f"{table.relation} has no key to choose rows by", "leave out --key")
        texts = [sql.SQL("{}::text").format(sql.Identifier(name)) for name in key]
        return sql.SQL(
            "SELECT {written}, {columns} FROM {table}"
            " WHERE concat_ws(',', {key}) = ANY ({keys}::text[]) LIMIT {rows}"
        ).format(key=sql.SQL(", ").join(texts), keys=sql.Literal(list(wanted.keys)), **parts)
    if table.kind is not RelationKind.TABLE:
        return sql.SQL("SELECT {written}, {columns} FROM {table} {newest} LIMIT {rows}").format(
            **parts
        )
    if table.pages <= _SMALL_PAGES:
        # Half are the rows written last, half are drawn by lot.
        return sql.SQL(
            "SELECT written, {values} FROM (SELECT {written}, {columns},"
            " row_number() OVER (ORDER BY age(xmin), ctid DESC) AS latest,"
            " row_number() OVER (ORDER BY hashtextextended(ctid::text, {seed})) AS lot"
            " FROM {table}) s ORDER BY latest > {half}, lot LIMIT {rows}"
        ).format(**parts)
    share = min(100.0, 100.0 * wanted.rows / max(1, table.estimated_rows) + 0.01)
    newest = sql.SQL("SELECT ctid FROM {table} {newest} LIMIT {half}").format(**parts)
    lot = sql.SQL(
        "SELECT ctid FROM {table} TABLESAMPLE SYSTEM ({share}) REPEATABLE ({seed})"
        " LIMIT {rows} - {half}"
    ).format(share=sql.Literal(share), **parts)
    # Looking for the newest by a column without an index would read the whole table.
    indexed = cursor is not None and cursor in table.leading_index_columns
    chosen = sql.SQL("({}) UNION ({})").format(newest, lot) if indexed else lot
    return sql.SQL("SELECT {written}, {columns} FROM {table} WHERE ctid IN ({chosen})").format(
        chosen=chosen, **parts
    )
