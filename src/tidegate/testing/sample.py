"""Sample rows, taken or made up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from tidegate.core.errors import SourceError
from tidegate.core.relation import Column, RelationKind, Table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import qualified

ROWS = 60
_MOMENT = "now() - interval '1 day' + n * interval '10 minutes'"
_BY_TYPE = {
    "boolean": "n % 2 = 0",
    "smallint": "n",
    "integer": "n",
    "bigint": "n",
    "real": "n + 0.5",
    "double precision": "n + 0.5",
    "text": "'text ' || n",
    "name": "'text ' || n",
    "bytea": "convert_to('bytes ' || n, 'UTF8')",
    "date": "current_date - 100 + n",
    "timestamp with time zone": _MOMENT,
    "timestamp without time zone": f"({_MOMENT})::timestamp",
    "time without time zone": "time '08:00' + n * interval '1 minute'",
    "interval": "n * interval '1 minute'",
    "uuid": "md5(n::text)::uuid",
    "json": "json_build_object('n', n)",
    "jsonb": "jsonb_build_object('n', n)",
    "inet": "inet '10.0.0.0' + n",
}
_LENGTH = re.compile(r"\((\d+)\)")


def invented_columns(connection: Connection, table: Table, types: dict[str, str]) -> sql.Composed:
    """A select list over the number n, in the types that the columns have here."""
    return sql.SQL(", ").join(
        sql.SQL("({})::{}").format(_value(connection, table, column), sql.SQL(types[column.name]))
        for column in table.columns
    )


def _value(connection: Connection, table: Table, column: Column) -> sql.Composable:
    labels = [
        label
        for (label,) in connection.execute(
            "SELECT enumlabel FROM pg_enum WHERE enumtypid = to_regtype(%s) ORDER BY enumsortorder",
            (column.type,),
        )
    ]
    if labels:
        return sql.SQL("({}::text[])[1 + n % {}]").format(
            sql.Literal(labels), sql.Literal(len(labels))
        )
    kind = column.type if column.via_text else column.wire
    plain = " ".join(_LENGTH.sub("", kind).split())
    if plain in _BY_TYPE:
        return sql.SQL(_BY_TYPE[plain])
    if plain.startswith("numeric"):
        return sql.SQL("n % 10")
    if plain in ("character varying", "character", "bpchar"):
        length = _LENGTH.search(kind)
        return sql.SQL("right('text ' || n, {})").format(
            sql.Literal(int(length.group(1)) if length else 20)
        )
    if plain.endswith("[]"):
        return sql.SQL("'{}'")
    if not column.not_null:
        return sql.SQL("NULL")
    raise SourceError(
        f"{table.relation} is empty, and no value can be made up for column {column.name} of "
        f"type {column.type}: there is nothing to prove with",
        "put some rows into the source, then try again",
    )


SAMPLE = sql.Identifier("tidegate_prove", "sample")
# Up to here (40 MB) the whole table is looked through for the rows written last.
_SMALL_PAGES = 5_000
_TIMEOUT = "120s"


@dataclass(frozen=True, slots=True)
class SampleSize:
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
    wanted: SampleSize,
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
    table: Table, key: tuple[str, ...], cursor: str | None, wanted: SampleSize
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
