"""One row of a lake's table, found by its key without Spark, and the commit that brought it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tidegate.errors import UsageError
from tidegate.insight.one_row import Key, TargetRow
from tidegate.lake.reading import LakeRowsAt
from tidegate.model.lake import LakeTable, Snapshot
from tidegate.pipeline.lake_mirror import field_kinds, lake_columns, mirror, written_type
from tidegate.postgres.connect import Connection, first_line
from tidegate.sources.postgres import PostgresSource

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = "tidegate: file"


@dataclass(frozen=True, slots=True)
class LakeRow:
    """A row of the target, and the commit that wrote the file it lies in, as far as is kept."""

    row: TargetRow
    written_in: Snapshot | None
    edited_in: int | None
    """that commit's number, where it was nobody's load"""


def read_lake_row(
    connection: Connection,
    table: LakeTable,
    rows: LakeRowsAt,
    names: Sequence[str],
    key: dict[str, Any],
    cursor: str | None,
) -> LakeRow | None:
    """The newest row with this key; its values are printed by Postgres, as the source's are."""
    kinds = [*field_kinds(table, names), (_FILE, "string")]
    has_cursor = cursor is not None and cursor in names
    order = sql.Identifier(cursor) if has_cursor and cursor else sql.SQL("NULL::text")
    with mirror(connection, "tidegate_why_lake", kinds) as found:
        found.fill(_with_file(rows, names, key))
        row = connection.execute(
            sql.SQL(
                "SELECT ARRAY[{}], {}::text, count(*) OVER (), {} FROM ({}) t"
                " ORDER BY {} DESC NULLS LAST LIMIT 1"
            ).format(
                sql.SQL(", ").join(
                    sql.SQL("{}::text").format(sql.Identifier(name)) for name in names
                ),
                order,
                sql.Identifier(_FILE),
                found.rows,
                order,
            )
        ).fetchone()
    if row is None:
        return None
    values, at, count, path = row
    written = rows.added_in(path)
    snapshot = None if written is None else table.snapshots.get(written)
    told = snapshot is not None and _tells(table, snapshot)
    update_id = snapshot.update_id if told and snapshot is not None else None
    edited = None
    if told and snapshot is not None and update_id is None:
        edited = snapshot.snapshot_id
    target = TargetRow(dict(zip(names, values, strict=True)), at, count, update_id)
    return LakeRow(target, snapshot, edited)


def lake_key(
    connection: Connection,
    target: Connection,
    source: PostgresSource,
    table: LakeTable,
    key: Key,
) -> dict[str, Any]:
    """The key in the values that the lake holds for it."""
    kinds = field_kinds(table, key)
    columns = lake_columns(source, kinds)
    found: dict[str, Any] = {}
    for name, kind in kinds:
        column = source.table.column(name)
        assert column is not None
        try:
            text = connection.execute(
                sql.SQL("SELECT ({})::text FROM (SELECT {}::{} AS {}) k").format(
                    columns[name],
                    sql.Literal(key[name]),
                    sql.SQL(column.type),
                    sql.Identifier(name),
                )
            ).fetchone()
            assert text is not None
            value = target.execute(
                sql.SQL("SELECT {}::{}").format(sql.Literal(text[0]), sql.SQL(written_type(kind)))
            ).fetchone()
        except psycopg.DataError as error:
            raise UsageError(
                f"{name} = {key[name]!r} cannot be looked for in a lake, where it is {kind}: "
                f"{first_line(error)}",
                None,
            ) from None
        assert value is not None
        found[name] = value[0]
    return found


def _with_file(
    rows: LakeRowsAt, names: Sequence[str], key: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for path, batch in rows.batches(names, key):
        columns = [*batch.columns, pa.array([path] * batch.num_rows, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, _FILE])


def _tells(table: LakeTable, snapshot: Snapshot) -> bool:
    """Whether whoever wrote a file brought its rows: rewriting files carries older ones along."""
    operation = snapshot.summary.get("operation")
    if operation == "append":
        return True
    merged = table.properties.get("write.merge.mode") == "merge-on-read"
    updated = table.properties.get("write.update.mode") == "merge-on-read"
    return operation == "overwrite" and merged and updated
