"""A table that somebody else has filled: what keeps a sync from taking it, and how far it got."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.destinations.target import check_target
from tidegate.errors import DestinationError
from tidegate.model.column import RelationKind, Table
from tidegate.model.cursor import CursorType
from tidegate.model.sync import Sync
from tidegate.pipeline.declaration import passthrough_shape
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, qualified
from tidegate.sources.postgres import PostgresSource


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the rows of a table reach: the highest cursor, and the next one below it."""

    highest: str | None
    below: str | None


def find_problems(connection: Connection, sync: Sync, source: PostgresSource) -> list[str]:
    """Everything that keeps the sync from going on with this table, each with a way out."""
    relation = sync.target.relation
    table = describe_table(connection, relation)
    if table is None:
        return [f"it does not exist; tidegate run {sync.name} makes and fills it"]
    if table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        return ["it is not a table; choose another target"]
    if is_empty(connection, qualified(relation)):
        return [f"it is empty; tidegate run {sync.name} fills it"]
    missing = [name for name in source.key if table.column(name) is None]
    problems = _column_problems(connection, sync, source, table, missing)
    if missing or not source.key:
        return problems
    return [*problems, *_key_problems(connection, source, table)]


def read_extent(connection: Connection, table: Table, cursor: str, kind: CursorType) -> Extent:
    """The highest cursor value of a table and the next lower one that is not infinite."""
    column = sql.Identifier(cursor)
    finite = sql.SQL("true" if kind.is_number else "isfinite({})").format(column)
    row = connection.execute(
        sql.SQL(
            "WITH top AS (SELECT max({column}) AS value FROM {table})"
            " SELECT (SELECT value FROM top)::text,"
            " (SELECT max({column}) FROM {table}"
            " WHERE {column} < (SELECT value FROM top) AND {finite})::text"
        ).format(column=column, table=qualified(table.relation), finite=finite)
    ).fetchone()
    assert row is not None
    return Extent(row[0], row[1])


def count_target(connection: Connection, table: Table) -> int:
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {}").format(qualified(table.relation))
    ).fetchone()
    assert row is not None
    return int(row[0])


def _column_problems(
    connection: Connection, sync: Sync, source: PostgresSource, table: Table, missing: list[str]
) -> list[str]:
    if sync.transform is None:
        try:
            check_target(
                connection, table.relation, table, passthrough_shape(connection, source), sync.rules
            )
        except DestinationError as error:
            return [error.message]
        return []
    # What a transformation makes is known when it runs; the key it must keep is known now.
    problems = [f"it has no column {name}, which is part of the key" for name in missing]
    wanted = set(source.key)
    if not missing and not any(set(unique) == wanted for unique in table.unique_keys):
        problems.append(
            f"it has no unique index on ({', '.join(source.key)}): "
            + sql.SQL("ALTER TABLE {} ADD UNIQUE ({})")
            .format(qualified(table.relation), column_list(source.key))
            .as_string(connection)
        )
    return problems


def _key_problems(connection: Connection, source: PostgresSource, table: Table) -> list[str]:
    problems: list[str] = []
    key = ", ".join(source.key)
    nulls = _count_null_keys(connection, source.key, table)
    if nulls:
        problems.append(
            f"{nulls:,} of its rows have no value in the key ({key}); fill it in or delete them"
        )
    if not table.proves_unique(source.key):
        duplicate = _find_duplicates(connection, source.key, table)
        if duplicate is not None:
            example, times, keys, surplus = duplicate
            problems.append(
                f"{keys:,} keys ({key}) occur more than once, such as {example}, {times} times; "
                f"delete the {surplus:,} rows too many before the index is made, for example all "
                "but the newest of each: " + _delete_surplus(connection, source, table)
            )
    return problems


def _count_null_keys(connection: Connection, key: tuple[str, ...], table: Table) -> int:
    columns = [table.column(name) for name in key]
    nullable = [column.name for column in columns if column and not column.not_null]
    if not nullable:
        return 0
    missing = sql.SQL(" OR ").join(
        sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in nullable
    )
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {}").format(qualified(table.relation), missing)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _find_duplicates(
    connection: Connection, key: tuple[str, ...], table: Table
) -> tuple[str, int, int, int] | None:
    """(an example, how often it occurs, how many keys, how many rows too many)."""
    names = column_list(key)
    present = sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT NULL").format(sql.Identifier(name)) for name in key
    )
    return connection.execute(
        sql.SQL(
            "SELECT ROW({names})::text, count(*), count(*) OVER (),"
            " (sum(count(*)) OVER () - count(*) OVER ())::bigint"
            " FROM {table} WHERE {present} GROUP BY {names} HAVING count(*) > 1"
            " ORDER BY 1 LIMIT 1"
        ).format(names=names, table=qualified(table.relation), present=present)
    ).fetchone()


def _delete_surplus(connection: Connection, source: PostgresSource, table: Table) -> str:
    same = sql.SQL(" AND ").join(
        sql.SQL("old.{name} = new.{name}").format(name=sql.Identifier(name)) for name in source.key
    )
    place = ["tableoid", "ctid"] if table.kind is RelationKind.PARTITIONED else ["ctid"]
    cursor = [source.ordered_by.name] if table.column(source.ordered_by.name) is not None else []
    order = [*cursor, *place]
    return (
        sql.SQL("DELETE FROM {table} old USING {table} new WHERE {same} AND ({old}) < ({new})")
        .format(
            table=qualified(table.relation),
            same=same,
            old=column_list(order, "old"),
            new=column_list(order, "new"),
        )
        .as_string(connection)
    )
