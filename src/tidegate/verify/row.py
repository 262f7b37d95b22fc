"""One row by its key: source, target, Iceberg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.errors import UsageError
from tidegate.core.relation import Table
from tidegate.core.shape import Shape
from tidegate.core.watermark import Horizon, Watermark
from tidegate.iceberg.rows import SnapshotRows
from tidegate.iceberg.table import IcebergTable, Snapshot
from tidegate.load.modes import MODES, append
from tidegate.load.sources.horizon import readable
from tidegate.load.sources.key_order import KeyOrder
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import bounded
from tidegate.load.sources.watermark_conditions import pending_condition
from tidegate.load.stage import passed_columns
from tidegate.load.targets.postgres.rejected_rows import rejected_table
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import condition, operator, qualified
from tidegate.verify.compared_rows import target_columns
from tidegate.verify.iceberg_rows import copy_to_postgres, field_kinds, lake_columns, written_type
from tidegate.verify.report import Rejection

if TYPE_CHECKING:
    import pyarrow as pa

_NEAREST_MILLISECONDS = 2_000

Key = dict[str, str]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of the source and where it lies."""

    values: dict[str, str | None]
    cursor: str | None
    meets_where: bool
    is_pending: bool
    above_horizon: bool
    in_lookback: bool
    rows: int
    """how many share the key"""


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A row of the target; `update_id` where the row itself names its load."""

    values: dict[str, str | None]
    cursor: str | None
    rows: int
    update_id: str | None = None


def parse_key(
    connection: Connection, sync: Sync, source: PostgresSource, given: Mapping[str, Any]
) -> Key:
    """The given values in the form in which the source prints them."""
    names = source.key or source.tie_key or ()
    loaded = {column.name for column in source.columns}
    if not names or not set(names) <= loaded:
        raise UsageError(
            f"rows of sync {sync.name} have no key, so one cannot be told from another",
            f"declare a key for it; to compare all of them: tidegate verify {sync.name}",
        )
    columns = [source.table.column(name) for name in names]
    described = ", ".join(f"{column.name} ({column.type})" for column in columns if column)
    hint = f"the key of {sync.name} is {described}"
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is not part of the key of {sync.name}", hint)
    missing = [name for name in names if given.get(name) is None]
    if missing:
        raise UsageError(f"no value was given for {', '.join(missing)}", hint)
    key: Key = {}
    for column in columns:
        assert column is not None
        text = str(given[column.name])
        try:
            row = connection.execute(
                sql.SQL("SELECT ({}::{})::text").format(sql.Literal(text), sql.SQL(column.type))
            ).fetchone()
        except psycopg.Error as error:
            raise UsageError(
                f"{column.name} = {text!r} is not a {column.type}: {first_line(error)}", hint
            ) from None
        assert row is not None
        key[column.name] = row[0]
    return key


def read_source(
    connection: Connection,
    sync: Sync,
    source: PostgresSource,
    key: Key,
    watermark: Watermark,
    horizon: Horizon,
    columns: Sequence[sql.Composable] | None = None,
) -> SourceRow | None:
    """The newest row with this key, whether or not `where` keeps it.

    `columns` are its values as the target holds them, where that is not as they travel.
    """
    nothing: sql.Composable = sql.SQL("NULL::text")
    cursor = nothing if source.cursor is None else source.cursor_identifier
    above: sql.Composable = sql.SQL("false")
    lookback: sql.Composable = sql.SQL("false")
    if source.cursor is not None:
        above = sql.SQL("true")
        if horizon.high is not None:
            above = sql.SQL("{} > {}").format(cursor, source.value(horizon.high))
        if source.lookback is not None and watermark.value is not None:
            low = source.lookback_low(connection, watermark.value)
            lookback = sql.SQL("{}::text::numeric > {}::numeric").format(cursor, sql.Literal(low))
            if not source.cursor.type.is_number:
                lookback = sql.SQL("{} > {}").format(cursor, source.value(low))
    kept = sql.SQL("true") if sync.where is None else condition(sync.where)
    row = connection.execute(
        sql.SQL(
            "SELECT {values}, {cursor}::text AS {text}, ({kept}) IS TRUE, ({pending}) IS TRUE,"
            " ({above}) IS TRUE, ({lookback}) IS TRUE, count(*) OVER () FROM {relation}"
            " WHERE {same} ORDER BY 3 DESC, {cursor} DESC NULLS LAST LIMIT 1"
        ).format(
            values=_texts(columns or passed_columns(source)),
            cursor=cursor,
            # A result of the cursor's own name would be what is ordered by: its text.
            text=sql.Identifier("tidegate: cursor"),
            kept=kept,
            pending=pending_condition(source, watermark, nulls=True),
            above=above,
            lookback=lookback,
            relation=readable(source.table),
            same=same_key(source.table, key),
        )
    ).fetchone()
    if row is None:
        return None
    names = [column.name for column in source.columns]
    return SourceRow(dict(zip(names, row[0], strict=True)), *row[1:])


def nearest_keys(connection: Connection, source: PostgresSource, key: Key) -> list[str]:
    """The keys before and after one that is not there, if that is quick to see."""
    names = list(key)
    found: list[str] = []
    for symbol, order in (("<", "DESC"), (">", "ASC")):
        query = sql.SQL(
            "SELECT {texts} FROM {relation} WHERE {beside} ORDER BY {order} LIMIT 1"
        ).format(
            texts=_texts([sql.Identifier(name) for name in names]),
            relation=source.relation,
            beside=KeyOrder(source.table, tuple(names), source.relation).compare(
                symbol, tuple(key.values())
            ),
            order=sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(order)) for name in names
            ),
        )
        try:
            with bounded(connection, _NEAREST_MILLISECONDS):
                row = connection.execute(query).fetchone()
        except (pg.QueryCanceled, pg.UndefinedFunction):
            return []
        if row is not None:
            found.append(" ".join(f"{n}={v}" for n, v in zip(names, row[0], strict=True)))
    return found


def read_target(
    connection: Connection, sync: Sync, table: Table, shape: Shape | None, key: Key
) -> TargetRow | None:
    """The newest row with this key, in the types of the load where they are known.

    Columns that the target does not have yet are left out.
    """
    wanted = table.column_names if shape is None else shape.names
    names = [name for name in wanted if table.column(name) is not None]
    values: Sequence[sql.Composable] = [sql.Identifier("t", name) for name in names]
    if shape is not None:
        values = target_columns(table, names, shape)
    has_cursor = sync.cursor is not None and table.column(sync.cursor) is not None
    cursor: sql.Composable = sql.SQL("NULL::text")
    if has_cursor and sync.cursor is not None:
        cursor = sql.Identifier("t", sync.cursor)
    row = connection.execute(
        sql.SQL(
            "SELECT {}, {}::text, count(*) OVER () FROM {} t WHERE {}"
            " ORDER BY {} DESC NULLS LAST LIMIT 1"
        ).format(
            _texts(values), cursor, qualified(table.relation), same_key(table, key, "t"), cursor
        )
    ).fetchone()
    if row is None:
        return None
    return TargetRow(dict(zip(names, row[0], strict=True)), row[1], row[2])


def read_version(connection: Connection, sync: Sync, key: Key) -> tuple[str, int] | None:
    """The load that the newest version names, and how many versions there are."""
    raw = append.raw_table(sync.target.relation)
    table = describe_table(connection, raw)
    if table is None:
        return None
    cursor = sync.cursor if sync.cursor and table.column(sync.cursor) else None
    order = append.newest_first(Shape((), tuple(key), cursor, key_is_unique=True))
    row = connection.execute(
        sql.SQL("SELECT update_id, count(*) OVER () FROM {} WHERE {} ORDER BY {} LIMIT 1").format(
            qualified(raw), same_key(table, key), order
        )
    ).fetchone()
    return None if row is None else (row[0], row[1])


def read_rejection(connection: Connection, sync: Sync, target: Table, key: Key) -> Rejection | None:
    """How this key was last set aside, if it is among the rejected ones now."""
    if not sync.checks:
        return None
    rejected = rejected_table(sync.target.relation)
    if describe_table(connection, rejected) is None:
        return None
    given = sql.SQL("jsonb_build_object({})").format(
        sql.SQL(", ").join(
            sql.SQL("{}::text, {}").format(sql.Literal(name), _literal(target, name, value))
            for name, value in key.items()
        )
    )
    row = connection.execute(
        # Without a key in the target, a row is known by its own columns.
        sql.SQL(
            "SELECT failed, rejected_at, update_id FROM {} WHERE {} ORDER BY id DESC LIMIT 1"
        ).format(
            qualified(rejected),
            sql.SQL("key = {}" if sync.key or not _is_plain(sync) else "row @> {}").format(given),
        )
    ).fetchone()
    return None if row is None else Rejection(tuple(row[0]), row[1], row[2])


def _is_plain(sync: Sync) -> bool:
    return MODES[sync.mode].doubles(sync.key)


def _texts(values: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL("ARRAY[{}]").format(
        sql.SQL(", ").join(sql.SQL("({})::text").format(value) for value in values)
    )


def same_key(table: Table, key: Key, alias: str | None = None) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(
            sql.Identifier(name) if alias is None else sql.Identifier(alias, name),
            operator("=", (column and column.operators) or "pg_catalog"),
            _literal(table, name, value),
        )
        for name, value in key.items()
        for column in [table.column(name)]
    )


def _literal(table: Table, name: str, text: str) -> sql.Composed:
    column = table.column(name)
    assert column is not None
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(column.type))


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
    table: IcebergTable,
    rows: SnapshotRows,
    names: Sequence[str],
    key: dict[str, Any],
    cursor: str | None,
) -> LakeRow | None:
    """The newest row with this key; its values are printed by Postgres, as the source's are."""
    kinds = [*field_kinds(table, names), (_FILE, "string")]
    has_cursor = cursor is not None and cursor in names
    order = sql.Identifier(cursor) if has_cursor and cursor else sql.SQL("NULL::text")
    with copy_to_postgres(connection, "tidegate_why_lake", kinds) as found:
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
    table: IcebergTable,
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
    rows: SnapshotRows, names: Sequence[str], key: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for path, batch in rows.batches(names, key):
        columns = [*batch.columns, pa.array([path] * batch.num_rows, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, _FILE])


def _tells(table: IcebergTable, snapshot: Snapshot) -> bool:
    """Whether whoever wrote a file brought its rows: rewriting files carries older ones along."""
    operation = snapshot.summary.get("operation")
    if operation == "append":
        return True
    merged = table.properties.get("write.merge.mode") == "merge-on-read"
    updated = table.properties.get("write.update.mode") == "merge-on-read"
    return operation == "overwrite" and merged and updated
