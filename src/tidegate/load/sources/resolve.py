"""A declaration against the real source: every name resolved, everything unsafe refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

import psycopg
from psycopg import sql

from tidegate.config import parse_duration
from tidegate.config.sync import Duplicates, Mode, Rules, Sync
from tidegate.core.errors import DeclarationError, SourceError, UsageError
from tidegate.core.relation import MAX_NAME_BYTES, Column, Relation, RelationKind, Table
from tidegate.core.shape import Shape, StagedColumn
from tidegate.core.watermark import CursorType, NullPolicy
from tidegate.load.sources.cdc.requirements import refuse_with_cdc
from tidegate.load.sources.horizon import CursorColumn, check_timezone
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.xmin import XminFilter, check_declared, check_source, check_xid_cursor
from tidegate.postgres.catalog import (
    check_readable,
    describe_query,
    describe_table,
    find_type,
    list_relations,
)
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.types import lake_type

SECONDS_PER_DAY = 86_400


def resolve_source(connection: Connection, sync: Sync) -> PostgresSource:
    """The source as it can be read; refuses what is wrong or unsafe before anything is written."""
    if sync.lake_source:
        raise UsageError(
            f"sync {sync.name}: its source is a lake, which this command cannot read",
            "run, plan and status can",
        )
    check_supported(sync)
    table = _describe(connection, sync)
    columns = _resolve_columns(table, sync)
    key = _resolve_key(table, sync)
    cursor = _resolve_cursor(connection, table, sync)
    written = _resolve_written(connection, table, cursor, sync)
    if written is not None:
        cursor = None
    elif cursor is not None and cursor.type is CursorType.XID8:
        check_xid_cursor(connection, sync)
    check_loaded(sync, [column.name for column in columns], key)
    check_layout(sync, [column.name for column in columns])
    source = PostgresSource(
        table=table,
        columns=columns,
        key=key,
        cursor=cursor,
        null_policy=None if cursor is None else _null_policy(table, sync),
        lookback=None if cursor is None else _lookback(sync, cursor.type),
        batch_rows=sync.batch_rows,
        where=sync.where,
        tie_key=table.primary_key,
        written=written,
    )
    _check_append(sync, source)
    if table.kind is not RelationKind.QUERY:
        check_readable(connection, table, source.read_columns)
    _check_where(connection, source, sync)
    return source


def passthrough_shape(destination: Connection, source: PostgresSource) -> Shape:
    """The shape of rows that travel unchanged; a type the destination lacks arrives as text."""
    columns = tuple(
        StagedColumn(
            name=column.name,
            staged_type=column.wire,
            target_type=(
                column.wire
                if not column.via_text
                else find_type(destination, column.type) or "text"
            ),
            not_null=column.not_null and source.table.kind is not RelationKind.VIEW,
        )
        for column in source.columns
    )
    names = {column.name for column in columns}
    cursor = source.cursor.name if source.cursor and source.cursor.name in names else None
    unique = bool(source.key) and source.table.proves_unique(source.key)
    return Shape(columns, source.key, cursor, unique)


def lake_shape(source: PostgresSource) -> Shape:
    """The shape of rows on their way into a lake; what Iceberg has no type for goes as text."""
    columns = tuple(
        StagedColumn(column.name, lake_type(column.wire), lake_type(column.wire))
        if not column.via_text
        else StagedColumn(column.name, "string", "string")
        for column in source.columns
    )
    names = {column.name for column in columns}
    cursor = source.lake_order if source.lake_order in names else None
    unique = bool(source.key) and source.table.proves_unique(source.key)
    return Shape(columns, source.key, cursor, unique)


def check_supported(sync: Sync) -> None:
    """Refuse what no source can do."""
    if sync.refused is not None:
        raise sync.refused
    long = next(
        (
            part
            for part in (sync.target.relation.schema, sync.target.relation.name)
            if len(part.encode()) > MAX_NAME_BYTES
        ),
        None,
    )
    if long is not None:
        raise DeclarationError(
            f"sync {sync.name}: the name of its target, {long!r}, is longer than "
            f"{MAX_NAME_BYTES} bytes",
            "Postgres would cut it off; choose a shorter target, or exclude the table and declare "
            "it on its own",
        )
    if sync.changes == "cdc":
        refuse_with_cdc(sync)
    elif sync.changes == "snapshot" and sync.lake_source:
        raise DeclarationError(
            f'sync {sync.name}: changes = "snapshot" is for tables of Postgres, and {sync.source} '
            "is one of a lake",
            "leave changes out: a lake's snapshots tell what changed",
        )
    if sync.changes == "snapshot":
        check_declared(sync)
    if sync.lake_target:
        refuse_in_lake(sync.rules, sync.key, f"sync {sync.name}")
    elif not sync.layout.is_plain:
        raise DeclarationError(
            f"sync {sync.name}: partition_by, sort_by and table_properties are for tables of a "
            f"lake, and {sync.target} is none",
            "remove them, or create the table yourself as it shall be",
        )
    if sync.source == sync.target:
        raise DeclarationError(
            f"sync {sync.name}: source and target are the same table", "choose another target"
        )


def refuse_in_lake(rules: Rules, key: tuple[str, ...] | None, what: str) -> None:
    """Refuse what cannot be one commit in a lake, with the way out."""
    if rules.mode is Mode.APPEND and key:
        raise DeclarationError(
            f"{what}: append with a key keeps every version of a row, which a lake does in its "
            "snapshots",
            'use mode = "merge", or leave the key out to append every row',
        )
    for name, given in (("before_sql", rules.before_sql), ("after_sql", rules.after_sql)):
        if given:
            raise DeclarationError(
                f"{what}: {name} cannot be part of a commit to a lake",
                "remove it, or load into Postgres",
            )
    if rules.checks:
        raise DeclarationError(
            f"{what}: rows that fail their checks are set aside in the same commit, and a lake "
            "commits one table at a time",
            "filter them in a transformation or with where, or load into Postgres",
        )


def check_layout(sync: Sync, names: Collection[str]) -> None:
    """What a table of a lake is laid out by must be among its columns."""
    if sync.transform is not None:
        return
    for name in sync.layout.columns:
        if name not in names:
            raise DeclarationError(
                f"sync {sync.name}: partition_by or sort_by names {name}, which is not loaded",
                nearest(name, names),
            )


def _check_append(sync: Sync, source: PostgresSource) -> None:
    """Rows that are read again would be doubled where nothing identifies them."""
    if sync.mode is not Mode.APPEND or source.key:
        return
    way_out = "declare a key, so that every version is kept once"
    if source.lookback is not None:
        raise DeclarationError(
            f"sync {sync.name}: append without a key would add the rows of its lookback again "
            "with every run",
            f"{way_out}, or set lookback = 0",
        )
    if source.null_policy is NullPolicy.INCLUDE:
        raise DeclarationError(
            f"sync {sync.name}: append without a key would add the rows without a cursor again "
            "with every run",
            f'{way_out}, or set null_cursor = "raise" or "exclude"',
        )


def _describe(connection: Connection, sync: Sync) -> Table:
    if sync.query is None:
        return _find_table(connection, sync.source.relation)
    try:
        table = describe_query(connection, sync.source.relation, sync.query)
    except psycopg.Error as error:
        raise DeclarationError(
            f"sync {sync.name}: its query cannot be read: {first_line(error)}",
            "correct the query; it must be a single SELECT",
        ) from None
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1 or name == "?column?"})
    if twice:
        raise DeclarationError(
            f"sync {sync.name}: its query has columns that cannot be told apart: "
            + ", ".join(twice),
            "give each column a name of its own, such as sum(total) AS total",
        )
    return table


def _resolve_columns(table: Table, sync: Sync) -> tuple[Column, ...]:
    for name in (*(sync.columns or ()), *sync.exclude_columns):
        _require_column(table, name, f"sync {sync.name}: column")
    if sync.columns is not None:
        return tuple(column for column in table.columns if column.name in sync.columns)
    return tuple(column for column in table.columns if column.name not in sync.exclude_columns)


def check_loaded(sync: Sync, names: Collection[str], key: tuple[str, ...]) -> None:
    """What identifies and orders the rows of the target must be among its columns."""
    for name in key:
        if name not in names:
            raise DeclarationError(
                f"sync {sync.name}: key column {name} is left out of the columns",
                "load it, or declare another key",
            )
    if sync.cursor is None or sync.cursor in names:
        return
    for needs, what in (
        (sync.mode is Mode.APPEND and bool(key), "append with a key"),
        (sync.duplicates is Duplicates.NEWEST, 'duplicates = "newest"'),
    ):
        if needs:
            raise DeclarationError(
                f"sync {sync.name}: cursor {sync.cursor} is left out of the columns, and {what} "
                "tells older rows from newer ones by it",
                "load it",
            )


def _check_where(connection: Connection, source: PostgresSource, sync: Sync) -> None:
    if sync.where is None:
        return
    try:
        connection.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(source.relation))
    except psycopg.Error as error:
        raise DeclarationError(
            f"sync {sync.name}: its where cannot be read: {first_line(error)}",
            f"write a condition over the columns of {source.table.relation}",
        ) from None


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
        if sync.mode is Mode.APPEND:
            return ()
        if table.primary_key or sync.mode is Mode.REPLACE:
            return table.primary_key
        raise DeclarationError(
            f"sync {sync.name}: {_label(table)} has no primary key, and {sync.mode} needs a key",
            f'declare the columns that identify a row, such as key = ["{table.column_names[0]}"], '
            'or load the whole of it each time with mode = "replace"',
        )
    if not sync.key and sync.group is not None and sync.mode is Mode.REPLACE:
        return ()
    if not sync.key:
        raise DeclarationError(
            f"sync {sync.name}: key is empty, and {sync.mode} needs one",
            'declare the columns that identify a row, such as key = ["id"]',
        )
    for name in sync.key:
        _require_column(table, name, f"sync {sync.name}: key column")
    return sync.key


def _resolve_cursor(connection: Connection, table: Table, sync: Sync) -> CursorColumn | None:
    if sync.changes == "cdc":
        return None
    if sync.mode is Mode.REPLACE:
        if sync.cursor is not None:
            raise DeclarationError(
                f"sync {sync.name}: replace loads the whole of {_label(table)} each time, so "
                f"cursor = {sync.cursor!r} means nothing",
                'remove the cursor, or use mode = "merge"',
            )
        return None
    if sync.cursor is None and sync.changes == "snapshot":
        return None
    if sync.cursor is None:
        candidates = [c.name for c in table.columns if CursorType.of(c.type) is not None]
        raise DeclarationError(
            f"sync {sync.name}: no cursor is declared",
            f"declare the column that rises with every change, cursor = …; {_label(table)} has "
            f"{', '.join(candidates) or 'no column that could be one'}; or load the whole of it "
            'each time with mode = "replace"',
        )
    _require_column(table, sync.cursor, f"sync {sync.name}: cursor")
    column = table.column(sync.cursor)
    assert column is not None
    kind = CursorType.of(column.wire)
    if kind is None:
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} is of type {column.type}",
            "a cursor is a timestamp with or without time zone, a date, an integer or an xid8",
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


def _resolve_written(
    connection: Connection, table: Table, cursor: CursorColumn | None, sync: Sync
) -> XminFilter | None:
    """How rows are found by their transactions, where that is declared and can be done."""
    if sync.changes != "snapshot":
        return None
    check_source(connection, table, cursor, sync)
    if cursor is None:
        return XminFilter()
    column = table.column(cursor.name)
    assert column is not None
    return XminFilter(cursor, _lookback(sync, cursor.type), nullable=not column.not_null)


def _lookback(sync: Sync, cursor_type: CursorType) -> str | int | None:
    if sync.lookback in (None, 0):
        return None
    if cursor_type.is_number:
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
            if table.kind is not RelationKind.QUERY
            else "may be NULL as far as a query shows"
        )
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} of {_label(table)} {why}, and rows without "
            "a cursor would be missed",
            'set null_cursor = "raise", "include" or "exclude", or make the column NOT NULL',
        )
    return sync.null_cursor


def _require_column(table: Table, name: str, what: str) -> None:
    if table.column(name) is None:
        raise DeclarationError(
            f"{what} {name} does not exist in {_label(table)}", nearest(name, table.column_names)
        )


def _label(table: Table) -> str:
    return "the query" if table.query is not None else str(table.relation)


def nearest(wrong: str, names: Iterable[str]) -> str:
    """The names that were probably meant."""
    known = list(names)
    close = difflib.get_close_matches(wrong, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:10]) + (" …" if len(known) > 10 else "")
    return f"there is {shown}" if known else "there is nothing there that this role may see"
