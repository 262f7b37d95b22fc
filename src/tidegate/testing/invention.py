"""Rows made up by type, for a source that has none yet."""

from __future__ import annotations

import re

from psycopg import sql

from tidegate.errors import SourceError
from tidegate.model.column import Column, Table
from tidegate.postgres.connect import Connection

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
