"""append: rows are added; with a key every version is kept, behind a view of the newest."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from tidegate.core.errors import DeclarationError, DestinationError
from tidegate.core.relation import MAX_NAME_BYTES, Relation, RelationKind
from tidegate.core.shape import Shape
from tidegate.load.modes.load_mode import PLAIN, LoadMode, Refusal, Request, TableForm
from tidegate.load.targets.iceberg.statement import IcebergStatement
from tidegate.load.targets.postgres import statements
from tidegate.load.targets.postgres.steps import ApplyStep, PostgresSteps
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, qualified

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
        qualified(raw), statements.same_key("o", "s", shape), equal
    )
    if shape.key_is_unique:
        newest = sql.SQL(
            "(SELECT {equal} FROM {raw} o WHERE {same} ORDER BY {order} LIMIT 1)"
        ).format(
            equal=equal,
            raw=qualified(raw),
            same=statements.same_key("o", "s", shape),
            order=newest_first(shape, "o"),
        )
        older: sql.Composable = sql.SQL("false")
        if shape.cursor is not None:
            older = sql.SQL("EXISTS (SELECT FROM {} o WHERE {} AND o.{c} {newer} s.{c})").format(
                qualified(raw),
                statements.same_key("o", "s", shape),
                c=sql.Identifier(shape.cursor),
                newer=statements.own_operator(">", shape, shape.cursor),
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
            statements.same_key("n", "o", shape),
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


def _check(connection: Connection, relation: Relation, shape: Shape) -> bool:
    check_names(relation, shape)
    return check_view(connection, relation)


VERSIONS = TableForm(
    suffix=SUFFIX,
    added=ADDED,
    holds_versions=True,
    index=create_index,
    view=view_statement,
    check=_check,
)


def _table(key: Sequence[str] | None) -> TableForm:
    return VERSIONS if key else PLAIN


def _postgres(steps: PostgresSteps) -> list[ApplyStep]:
    put = _add_versions(steps) if steps.shape.key else steps.insert()
    return [steps.clear(), put] if steps.full and not steps.first else [put]


def _add_versions(steps: PostgresSteps) -> ApplyStep:
    assert steps.rows is not None
    return ApplyStep(
        append_statement(steps.table, steps.rows, steps.shape, steps.update_id),
        tells_changes=True,
        puts=new_versions(steps.table, steps.rows, steps.shape),
    )


def _iceberg(statement: IcebergStatement) -> str:
    return statement.overwrite()


def _hides_updates(cursor: str | None, *, key_is_proven: bool) -> str | None:
    return (
        f"the view shows the version with the highest {cursor}: an update that a slow clock "
        "stamped below the version before it is not taken"
    )


APPEND = LoadMode(
    postgres=_postgres,
    # Only asked of a full batch, whose rows take the place of all.
    iceberg=_iceberg,
    only_adds=True,
    folds_repeats=False,
    table=_table,
    hides_updates=_hides_updates,
    refusals=(
        Refusal(
            Request.DELETES,
            "{carried}, and mode append keeps every row that it was given",
            'use mode = "merge" or "delete_insert", or a source that only gains rows',
        ),
        Refusal(
            Request.FORGET_TASK,
            "task {task} appends to {target}: done again, its rows would be there twice",
            "remove them, then: tidegate marker forget {target} {update_id}",
            only_without_key=True,
        ),
        Refusal(
            Request.REWIND,
            "sync {sync} appends without a key: rows loaded again would be there twice",
            "to load everything again: tidegate run {sync} --full-refresh",
            only_without_key=True,
        ),
        Refusal(
            Request.SKIP_PART,
            "rows of {sync} with {reached} are loaded in part, and it appends without a key: they "
            "would be there twice",
            "finish them first: tidegate run {sync}; or load everything again: tidegate run {sync} "
            "--full-refresh",
            only_without_key=True,
        ),
    ),
)
