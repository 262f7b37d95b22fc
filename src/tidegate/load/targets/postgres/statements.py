"""SQL over staged rows: merge, insert, delete, and what a check asks of them."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from tidegate.core.batch import StagedWrite
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, from_text, operator, qualified


def is_gone(shape: Shape) -> sql.Composed:
    """Whether a staged row says that the row with its key is gone."""
    assert shape.deleted is not None
    return sql.SQL("{} IS TRUE").format(sql.Identifier(shape.deleted))


def kept_rows(rows: sql.Composable, shape: Shape) -> sql.Composable:
    """The staged rows that are rows of the target, in its columns."""
    if shape.deleted is None:
        return rows
    return sql.SQL("SELECT {} FROM ({}) k WHERE {} IS NOT TRUE").format(
        column_list(shape.names), rows, sql.Identifier(shape.deleted)
    )


def gone_keys(rows: sql.Composable, shape: Shape) -> sql.Composed:
    """The keys of the rows that are gone."""
    return sql.SQL("SELECT {} FROM ({}) g WHERE {}").format(
        column_list(shape.key), rows, is_gone(shape)
    )


def count_gone(connection: Connection, rows: sql.Composable, shape: Shape) -> int:
    """How many of the staged rows say that a row is gone."""
    if shape.deleted is None:
        return 0
    found = connection.execute(
        sql.SQL("SELECT count(*) FROM ({}) g").format(gone_keys(rows, shape))
    ).fetchone()
    return int(found[0]) if found else 0


def staged_rows(tables: Sequence[sql.Identifier], shape: Shape, *, cast: bool) -> sql.Composed:
    """All staged rows as one relation, in the target's types when `cast`."""
    columns: list[sql.Composable] = [
        _cast(column, shape)
        if cast and column.staged_type != column.target_type
        else sql.Identifier(column.name)
        for column in shape.columns
    ]
    if shape.deleted is not None:
        columns.append(sql.Identifier(shape.deleted))
    return sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(columns), table) for table in tables
    )


def _cast(column: StagedColumn, shape: Shape) -> sql.Composed:
    name = sql.Identifier(column.name)
    if column.staged_type == "text":
        value = from_text(name, column.target_type)
    else:
        value = sql.SQL("{}::{}").format(name, sql.SQL(column.target_type))
    if shape.deleted is not None and column.name not in (*shape.key, shape.cursor):
        # What a deleted row holds there need not be a value of the target's type.
        value = sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(is_gone(shape), value)
    return sql.SQL("{} AS {}").format(value, name)


def newest_rows(rows: sql.Composable, shape: Shape) -> sql.Composed:
    """One row per key, in a total order: the highest cursor, then the highest content.

    A deleted row without a cursor is the newest of its key, and of two with one cursor the deleted.
    """
    order: list[sql.Composable] = [sql.Identifier(name) for name in shape.key]
    if shape.cursor is not None:
        cursor = sql.Identifier(shape.cursor)
        if shape.deleted is not None:
            gone = is_gone(shape)
            order.append(sql.SQL("({} AND {} IS NULL) DESC").format(gone, cursor))
        order.append(sql.SQL("{} DESC NULLS LAST").format(cursor))
    if shape.deleted is not None:
        order.append(sql.SQL("({}) DESC").format(is_gone(shape)))
    order.append(sql.SQL('ROW({})::text COLLATE "C" DESC').format(column_list(shape.names)))
    names = column_list(name for name, _ in shape.staged)
    return sql.SQL("SELECT DISTINCT ON ({}) {} FROM ({}) d ORDER BY {}").format(
        column_list(shape.key), names, rows, sql.SQL(", ").join(order)
    )


def merge_statement(
    target: Relation, rows: sql.Composable, shape: Shape, *, newest_wins: bool
) -> sql.Composed:
    """Upsert; rows that would not change anything are sorted out before they cost a write."""
    keep: sql.Composable = sql.SQL("")
    if newest_wins and shape.cursor is not None:
        keep = sql.SQL(
            " WHERE t.{c} {older} excluded.{c} OR t.{c} IS NULL OR excluded.{c} IS NULL"
        ).format(c=sql.Identifier(shape.cursor), older=own_operator("<=", shape, shape.cursor))
    others = [name for name in shape.names if name not in shape.key]
    action: sql.Composable = sql.SQL("NOTHING")
    if others:
        action = sql.SQL("UPDATE SET {}{}").format(
            sql.SQL(", ").join(
                sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
                for name in others
            ),
            keep,
        )
    return sql.SQL("INSERT INTO {} AS t ({}) {} ON CONFLICT ({}) DO {}").format(
        qualified(target),
        column_list(shape.names),
        changing_rows(target, rows, shape, newest_wins=newest_wins),
        column_list(shape.key),
        action,
    )


def changing_rows(
    target: Relation, rows: sql.Composable, shape: Shape, *, newest_wins: bool
) -> sql.Composed:
    """The rows that an upsert would insert or update."""
    stale: sql.Composable = sql.SQL("")
    if newest_wins and shape.cursor is not None:
        stale = sql.SQL(" OR o.{c} {newer} s.{c}").format(
            c=sql.Identifier(shape.cursor), newer=own_operator(">", shape, shape.cursor)
        )
    return sql.SQL(
        "SELECT {names} FROM ({rows}) s"
        " WHERE NOT EXISTS (SELECT FROM {target} o WHERE {same_key}"
        " AND (pg_catalog.record_image_eq(ROW({old}), ROW({new})){stale}))"
    ).format(
        target=qualified(target),
        names=column_list(shape.names),
        rows=rows,
        same_key=same_key("o", "s", shape),
        old=column_list(shape.names, "o"),
        new=column_list(shape.names, "s"),
        stale=stale,
    )


def insert_statement(target: Relation, rows: sql.Composable, shape: Shape) -> sql.Composed:
    """Plain insert, for a target that has no rows yet."""
    return sql.SQL("INSERT INTO {} ({}) {}").format(
        qualified(target), column_list(shape.names), rows
    )


def delete_others_statement(target: Relation, rows: sql.Composable, shape: Shape) -> sql.Composed:
    """Remove what a full batch does not hold."""
    return sql.SQL("DELETE FROM {} t WHERE {}").format(
        qualified(target), is_missing("t", rows, shape)
    )


def is_missing(alias: str, rows: sql.Composable, shape: Shape) -> sql.Composed:
    """Whether no row of a batch has the key of this one."""
    return sql.SQL("NOT EXISTS (SELECT FROM ({}) s WHERE {})").format(
        rows, same_key(alias, "s", shape)
    )


def delete_same_statement(target: Relation, rows: sql.Composable, shape: Shape) -> sql.Composed:
    """Remove the rows whose keys come again."""
    return sql.SQL("DELETE FROM {} t WHERE EXISTS (SELECT FROM ({}) s WHERE {})").format(
        qualified(target), rows, same_key("t", "s", shape)
    )


def delete_part_statement(
    target: Relation, within: Sequence[tuple[str, object]], shape: Shape
) -> sql.Composed:
    """Remove the rows of a part of the target."""
    return sql.SQL("DELETE FROM {} WHERE {}").format(
        qualified(target), part_condition(within, shape)
    )


def outside_statement(
    rows: sql.Composable, within: Sequence[tuple[str, object]], shape: Shape
) -> sql.Composed:
    """How many staged rows lie outside the part that they are to replace."""
    return sql.SQL("SELECT count(*) FROM ({}) s WHERE ({}) IS NOT TRUE").format(
        rows, part_condition(within, shape)
    )


def part_condition(within: Sequence[tuple[str, object]], shape: Shape) -> sql.Composed:
    """Whether a row belongs to a part: text that Postgres reads as the column's own type."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(
            sql.Identifier(name),
            own_operator("=", shape, name),
            sql.Literal(value if isinstance(value, bool) else str(value)),
        )
        for name, value in within
    )


def duplicate_key_statement(rows: sql.Composable, shape: Shape) -> sql.Composed:
    """A key that more than one staged row has."""
    key = column_list(shape.key)
    return sql.SQL(
        "SELECT ROW({key})::text, count(*) FROM ({rows}) s"
        " GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
    ).format(key=key, rows=rows)


def null_key_statement(rows: sql.Composable, shape: Shape) -> sql.Composed:
    """How many staged rows lack a part of their key."""
    return sql.SQL("SELECT count(*) FROM ({}) s WHERE {}").format(
        rows,
        sql.SQL(" OR ").join(
            sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in shape.key
        ),
    )


def count_statement(table: sql.Composable) -> sql.Composed:
    return sql.SQL("SELECT count(*) FROM {}").format(table)


def total_rows(writes: Sequence[StagedWrite]) -> int:
    return sum(write.rows for write in writes)


def same_key(left: str, right: str, shape: Shape) -> sql.Composed:
    """Whether the rows of two aliases have one key, as an index of the target sees it."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(
            sql.Identifier(left, name),
            own_operator("=", shape, name),
            sql.Identifier(right, name),
        )
        for name in shape.key
    )


def own_operator(symbol: str, shape: Shape, name: str) -> sql.Composable:
    """An operator of a column's type and no other, whatever the session's search_path."""
    column = shape.column(name)
    return operator(symbol, (column and column.operators) or "pg_catalog")
