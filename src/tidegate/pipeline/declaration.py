"""A declaration against the real source: every name resolved, everything unsafe refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tidegate.errors import DeclarationError, SourceError
from tidegate.model.column import RelationKind, Table
from tidegate.model.cursor import CursorType, NullPolicy
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.sync import Sync
from tidegate.pipeline.privileges import check_readable
from tidegate.postgres.catalog import describe_table, list_relations, type_exists
from tidegate.postgres.connect import Connection
from tidegate.settings import parse_duration
from tidegate.sources.horizon import CursorColumn, check_timezone
from tidegate.sources.postgres import PostgresSource

SECONDS_PER_DAY = 86_400


def resolve_source(connection: Connection, sync: Sync) -> PostgresSource:
    """The source as it can be read; refuses what is wrong or unsafe before anything is written."""
    _check_supported(sync)
    table = _find_table(connection, sync.source.relation)
    key = _resolve_key(table, sync)
    cursor = _resolve_cursor(connection, table, sync)
    check_readable(connection, table, table.column_names)
    return PostgresSource(
        table=table,
        columns=table.columns,
        key=key,
        cursor=cursor,
        null_policy=_null_policy(table, sync),
        lookback=_lookback(sync, cursor.type),
        batch_rows=sync.batch_rows,
    )


def passthrough_shape(destination: Connection, source: PostgresSource) -> Shape:
    """The shape of rows that travel unchanged; a type the destination lacks arrives as text."""
    columns = tuple(
        StagedColumn(
            name=column.name,
            staged_type=column.wire,
            target_type=(
                column.wire
                if not column.via_text
                else column.type
                if type_exists(destination, column.type)
                else "text"
            ),
            not_null=column.not_null and source.table.kind is not RelationKind.VIEW,
        )
        for column in source.columns
    )
    return Shape(columns, source.key, source.cursor.name, source.table.proves_unique(source.key))


def _check_supported(sync: Sync) -> None:
    if sync.mode != "merge":
        raise DeclarationError(
            f'sync {sync.name}: mode = "{sync.mode}" is not available yet', 'use mode = "merge"'
        )
    if sync.changes != "cursor":
        raise DeclarationError(
            f'sync {sync.name}: changes = "{sync.changes}" is not available yet',
            'use changes = "cursor"',
        )
    if sync.source == sync.target:
        raise DeclarationError(
            f"sync {sync.name}: source and target are the same table", "choose another target"
        )


def _find_table(connection: Connection, relation: Relation) -> Table:
    table = describe_table(connection, relation)
    if table is None:
        raise SourceError(
            f"table {relation} does not exist in database {connection.info.dbname}",
            nearest(str(relation), (str(one) for one in list_relations(connection))),
        )
    return table


def _resolve_key(table: Table, sync: Sync) -> tuple[str, ...]:
    if sync.key is None:
        if table.primary_key:
            return table.primary_key
        raise DeclarationError(
            f"sync {sync.name}: {table.relation} has no primary key, and merge needs a key",
            f'declare the columns that identify a row, such as key = ["{table.column_names[0]}"]',
        )
    if not sync.key:
        raise DeclarationError(
            f"sync {sync.name}: key is empty, and merge needs one",
            'declare the columns that identify a row, such as key = ["id"]',
        )
    for name in sync.key:
        _require_column(table, name, f"sync {sync.name}: key column")
    return sync.key


def _resolve_cursor(connection: Connection, table: Table, sync: Sync) -> CursorColumn:
    if sync.cursor is None:
        candidates = [c.name for c in table.columns if CursorType.of(c.type) is not None]
        raise DeclarationError(
            f"sync {sync.name}: no cursor is declared",
            f"declare the column that rises with every change, cursor = …; "
            f"{table.relation} has {', '.join(candidates) or 'no column that could be one'}",
        )
    _require_column(table, sync.cursor, f"sync {sync.name}: cursor")
    column = table.column(sync.cursor)
    assert column is not None
    kind = CursorType.of(column.wire)
    if kind is None:
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} is of type {column.type}",
            "a cursor is a timestamp with or without time zone, a date or an integer",
        )
    if sync.cursor_timezone is not None:
        check_timezone(connection, sync.cursor_timezone)
    lookback = _lookback(sync, kind)
    return CursorColumn(
        table=table,
        name=sync.cursor,
        type=kind,
        settle_seconds=sync.settle_seconds,
        timezone=sync.cursor_timezone,
        lookback_days=(
            kind is CursorType.DATE
            and lookback is not None
            and parse_duration(str(lookback)) >= SECONDS_PER_DAY
        ),
    )


def _lookback(sync: Sync, cursor_type: CursorType) -> str | int | None:
    if sync.lookback in (None, 0):
        return None
    if cursor_type.is_integer:
        if not isinstance(sync.lookback, int):
            raise DeclarationError(
                f"sync {sync.name}: lookback = {sync.lookback!r} for an integer cursor",
                "write a number of values, such as lookback = 1000",
            )
        return sync.lookback
    if isinstance(sync.lookback, int):
        raise DeclarationError(
            f"sync {sync.name}: lookback = {sync.lookback} for a cursor of time",
            'write a duration, such as lookback = "10 minutes"',
        )
    return f"{parse_duration(str(sync.lookback)):.6f} seconds"


def _null_policy(table: Table, sync: Sync) -> NullPolicy | None:
    column = table.column(sync.cursor or "")
    assert column is not None
    if column.not_null:
        return None
    if sync.null_cursor is None:
        why = (
            "is a column of a view, which may hold NULL"
            if table.kind in (RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW)
            else "may be NULL"
        )
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} of {table.relation} {why}, and rows without "
            "a cursor would be missed",
            'set null_cursor = "raise", "include" or "exclude", or make the column NOT NULL',
        )
    return sync.null_cursor


def _require_column(table: Table, name: str, what: str) -> None:
    if table.column(name) is None:
        raise DeclarationError(
            f"{what} {name} does not exist in {table.relation}", nearest(name, table.column_names)
        )


def nearest(wrong: str, names: Iterable[str]) -> str:
    """The names that were probably meant."""
    known = list(names)
    close = difflib.get_close_matches(wrong, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:10]) + (" …" if len(known) > 10 else "")
    return f"there is {shown}" if known else "there is nothing there that this role may see"
