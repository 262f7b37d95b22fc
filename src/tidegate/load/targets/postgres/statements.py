"""SQL of merge, append, deletes."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Mode, Rules
from tidegate.core.batch import StagedWrite
from tidegate.core.errors import DeclarationError, DestinationError
from tidegate.core.relation import MAX_NAME_BYTES, Relation, RelationKind
from tidegate.core.shape import Shape, StagedColumn
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, from_text, operator, qualified


def refuse_deletes(relation: Relation, shape: Shape, rules: Rules, *, full: bool = False) -> None:
    """Refuse deletes where they have no meaning."""
    if shape.deleted is None:
        return
    carried = f"the rows for {relation} carry deletes"
    if rules.mode is Mode.APPEND:
        raise DeclarationError(
            f"{carried}, and mode append keeps every row that it was given",
            'use mode = "merge" or "delete_insert", or a source that only gains rows',
        )
    if rules.mode is Mode.REPLACE or full:
        what = "a full batch" if full else "mode replace"
        raise DeclarationError(
            f"{carried}, and {what} removes whatever it does not hold",
            'load the changes in mode = "merge" or "delete_insert", or the whole without deletes',
        )
    if not shape.key:
        raise DeclarationError(
            f"{carried}, and without a key nobody can tell which rows are gone",
            "declare a key with key = …",
        )
    if shape.deleted in shape.names:
        raise DeclarationError(
            f"{carried} in a column called {shape.deleted}, and so is a column of the target",
            "rename that column at the source, or leave it out with exclude_columns",
        )


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


SUFFIX = "_raw"
# Beside the columns of the load, in this order.
ADDED = {
    "load_seq": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "loaded_at": "timestamptz NOT NULL DEFAULT now()",
    "update_id": "text NOT NULL",
}


def raw_table(relation: Relation) -> Relation:
    """The table behind the view."""
    return Relation(relation.schema, relation.name + SUFFIX)


def check_names(relation: Relation, shape: Shape) -> None:
    """Refuse names that leave no room for ours."""
    if len((relation.name + SUFFIX).encode()) > MAX_NAME_BYTES:
        raise DeclarationError(
            f"{relation} is too long a name: append with a key keeps its rows in "
            f"{relation.name}{SUFFIX}",
            f"choose a target of at most {MAX_NAME_BYTES - len(SUFFIX)} bytes",
        )
    taken = [name for name in shape.names if name in ADDED]
    if taken:
        raise DeclarationError(
            f"{raw_table(relation)} has columns of its own called {', '.join(taken)}",
            "leave them out with exclude_columns, or rename them in a query",
        )


def check_view(connection: Connection, relation: Relation) -> bool:
    """Whether raw table and view are there; refuses what stands in their place."""
    view, raw = (
        describe_table(connection, relation),
        describe_table(connection, raw_table(relation)),
    )
    if view is not None and (view.kind is not RelationKind.VIEW or raw is None):
        kind = "table" if view.kind is not RelationKind.VIEW else "view of something else"
        raise DestinationError(
            f"{relation} is a {kind}; append with a key keeps every version in "
            f"{raw_table(relation)} and shows the newest in a view called {relation}",
            'choose another target, or rename the old one; to go on loading it, use mode = "merge"',
        )
    if raw is not None and raw.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        raise DestinationError(f"{raw.relation} is not a table", "choose another target")
    return view is not None and raw is not None


def view_statement(relation: Relation, shape: Shape, columns: Sequence[str]) -> sql.Composed:
    """The newest version of each row, with these columns of the raw table."""
    return sql.SQL(
        "CREATE OR REPLACE VIEW {} AS SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}"
    ).format(
        qualified(relation),
        column_list(shape.key),
        column_list(columns),
        qualified(raw_table(relation)),
        newest_first(shape),
    )


def create_view(connection: Connection, relation: Relation, shape: Shape) -> None:
    """Make the view over the raw table."""
    statement = view_statement(relation, shape, shape.names)
    try:
        with connection.transaction():
            connection.execute(statement)
    except pg.UniqueViolation:
        # Somebody else made it in the same moment.
        connection.execute(statement)


def create_index(relation: Relation, shape: Shape) -> sql.Composed:
    """The index that finds the newest version of a key."""
    return sql.SQL("CREATE INDEX ON {} ({})").format(
        qualified(raw_table(relation)), newest_first(shape)
    )


def newest_first(shape: Shape, alias: str | None = None) -> sql.Composed:
    """The order in which the first row of a key is its newest version."""

    def name(column: str) -> sql.Identifier:
        return sql.Identifier(column) if alias is None else sql.Identifier(alias, column)

    order: list[sql.Composable] = [name(column) for column in shape.key]
    if shape.cursor is not None:
        order.append(sql.SQL("{} DESC NULLS LAST").format(name(shape.cursor)))
    order.append(sql.SQL("{} DESC").format(name("load_seq")))
    return sql.SQL(", ").join(order)


def append_statement(
    raw: Relation, rows: sql.Composable, shape: Shape, update_id: str
) -> sql.Composed:
    """Add the versions that are not there yet, in the order of their cursor."""
    order: list[sql.Composable] = []
    if shape.cursor is not None:
        order.append(sql.SQL("s.{} NULLS FIRST").format(sql.Identifier(shape.cursor)))
    order.append(sql.SQL('ROW({})::text COLLATE "C"').format(column_list(shape.names, "s")))
    return sql.SQL(
        "INSERT INTO {raw} ({names}, update_id) SELECT {columns}, {update_id} FROM {new}"
        " ORDER BY {order}"
    ).format(
        raw=qualified(raw),
        names=column_list(shape.names),
        columns=column_list(shape.names, "s"),
        update_id=sql.Literal(update_id),
        new=new_versions(raw, rows, shape),
        order=sql.SQL(", ").join(order),
    )


def new_versions(raw: Relation, rows: sql.Composable, shape: Shape) -> sql.Composed:
    """What follows FROM: the versions that are not there yet, called s.

    Where the key is unique in the source, a row that differs from the newest version is a new
    one, even if it looked like this before. Where it is not, any equal version is the same row.
    """
    equal = sql.SQL("pg_catalog.record_image_eq(ROW({}), ROW({}))").format(
        column_list(shape.names, "o"), column_list(shape.names, "s")
    )
    present: sql.Composable = sql.SQL("EXISTS (SELECT FROM {} o WHERE {} AND {})").format(
        qualified(raw), same_key("o", "s", shape), equal
    )
    if shape.key_is_unique:
        newest = sql.SQL(
            "(SELECT {equal} FROM {raw} o WHERE {same} ORDER BY {order} LIMIT 1)"
        ).format(
            equal=equal,
            raw=qualified(raw),
            same=same_key("o", "s", shape),
            order=newest_first(shape, "o"),
        )
        older: sql.Composable = sql.SQL("false")
        if shape.cursor is not None:
            older = sql.SQL("EXISTS (SELECT FROM {} o WHERE {} AND o.{c} {newer} s.{c})").format(
                qualified(raw),
                same_key("o", "s", shape),
                c=sql.Identifier(shape.cursor),
                newer=own_operator(">", shape, shape.cursor),
            )
        present = sql.SQL("coalesce({}, false) OR ({} AND {})").format(newest, older, present)
    return sql.SQL(
        "(SELECT DISTINCT ON (ROW({names})::text) {names} FROM ({rows}) d) s WHERE NOT ({present})"
    ).format(names=column_list(shape.names), rows=rows, present=present)


def chunk_end_statement(raw: Relation, after: int, limit: int) -> sql.Composed:
    """The last of the next `limit` versions, in the order in which they were loaded."""
    return sql.SQL(
        "SELECT max(load_seq) FROM"
        " (SELECT load_seq FROM {} WHERE load_seq > {} ORDER BY load_seq LIMIT {}) c"
    ).format(qualified(raw), sql.Literal(after), sql.Literal(limit))


def superseded_condition(raw: Relation, shape: Shape, after: int, until: int) -> sql.Composed:
    """Whether version `o`, one of a chunk, is hidden by a newer one of its key.

    One look into the index for each version of the chunk, whatever the size of the table. Where a
    key may occur twice in the source, versions with one cursor are not older than one another:
    the hidden one would be appended again when it is read again, and then hide the other.
    """

    def newest(column: str) -> sql.Composed:
        return sql.SQL("(SELECT n.{} FROM {} n WHERE {} ORDER BY {} LIMIT 1)").format(
            sql.Identifier(column),
            qualified(raw),
            same_key("n", "o", shape),
            newest_first(shape, "n"),
        )

    hidden = sql.SQL("{} <> o.load_seq").format(newest("load_seq"))
    if not shape.key_is_unique and shape.cursor is not None:
        hidden = sql.SQL("{} AND {} IS DISTINCT FROM o.{}").format(
            hidden, newest(shape.cursor), sql.Identifier(shape.cursor)
        )
    return sql.SQL("o.load_seq > {} AND o.load_seq <= {} AND {}").format(
        sql.Literal(after), sql.Literal(until), hidden
    )


def superseded_statement(
    raw: Relation, shape: Shape, after: int, until: int, *, delete: bool
) -> sql.Composed:
    """Count and measure the superseded versions of a chunk, and delete them if so wanted."""
    condition = superseded_condition(raw, shape, after, until)
    found = sql.SQL("SELECT pg_column_size(o) AS size FROM {} o WHERE {}")
    if delete:
        found = sql.SQL("DELETE FROM {} o WHERE {} RETURNING pg_column_size(o) AS size")
    return sql.SQL("WITH gone AS ({}) SELECT count(*), coalesce(sum(size), 0) FROM gone").format(
        found.format(qualified(raw), condition)
    )
