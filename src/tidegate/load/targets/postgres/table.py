"""Create, check and drop the target table."""

from __future__ import annotations

from dataclasses import replace

from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Rules
from tidegate.core.errors import DestinationError, TargetGone, TargetUnknown
from tidegate.core.identity import sync_of
from tidegate.core.relation import Column, Relation, RelationKind, Table
from tidegate.core.shape import Shape
from tidegate.core.watermark import Watermark
from tidegate.load.modes import MODES, TableForm
from tidegate.load.modes.append import VERSIONS
from tidegate.load.target import refuse_deletes
from tidegate.load.targets.postgres.rejected_rows import (
    COLUMNS,
    check_conditions,
    ensure_rejected,
    rejected_table,
)
from tidegate.load.targets.postgres.schema_changes import accepts, converted, needs_zone, retyping
from tidegate.postgres.catalog import OPERATORS, describe_table, is_empty
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import column_list, qualified


def create_table(connection: Connection, relation: Relation, shape: Shape, form: TableForm) -> None:
    """Make a table for the rows and the view over it, if it has one, and its schema if need be."""
    table = form.place(relation)
    statements = [_create_table(table, table_parts(shape, form))]
    if form.index is not None:
        statements.append(form.index(relation, shape))
    _create(connection, relation, table, statements)
    if form.view is not None:
        _create_view(connection, form.view(relation, shape, shape.names))


def table_parts(shape: Shape, form: TableForm) -> list[sql.Composed]:
    """What stands inside CREATE TABLE."""
    added = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
        for name, kind in form.added.items()
    ]
    if shape.key and not form.holds_versions:
        added.append(sql.SQL("PRIMARY KEY ({})").format(column_list(shape.key)))
    return [*definitions(shape), *added]


def definitions(shape: Shape) -> list[sql.Composed]:
    """The columns as CREATE TABLE writes them."""
    return [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.target_type),
            sql.SQL(" NOT NULL" if column.not_null or column.name in shape.key else ""),
        )
        for column in shape.columns
    ]


def _create_table(relation: Relation, parts: list[sql.Composed]) -> sql.Composed:
    return sql.SQL("CREATE TABLE {} ({})").format(qualified(relation), sql.SQL(", ").join(parts))


def _create(
    connection: Connection, target: Relation, table: Relation, statements: list[sql.Composed]
) -> None:
    try:
        with connection.transaction():
            _create_schema(connection, target.schema)
            for statement in statements:
                connection.execute(statement)
    except (pg.DuplicateTable, pg.DuplicateSchema, pg.UniqueViolation) as error:
        if isinstance(error, pg.DuplicateTable) and not describe_table(connection, table):
            raise DestinationError(f"{table} is not a table", "choose another target") from None
        if describe_table(connection, table) is None:
            # Two creators of one schema: the other one has it now.
            _create(connection, target, table, statements)
    except pg.InsufficientPrivilege as error:
        raise DestinationError(
            f"role {connection.info.user} may not create {table}: {error.diag.message_primary}",
            f"GRANT CREATE ON SCHEMA {target.schema} TO {connection.info.user}, or create the "
            "table beforehand",
        ) from None


def _create_view(connection: Connection, statement: sql.Composed) -> None:
    try:
        with connection.transaction():
            connection.execute(statement)
    except pg.UniqueViolation:
        # Somebody else made it in the same moment.
        connection.execute(statement)


def _create_schema(connection: Connection, schema: str) -> None:
    exists = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (schema,)
    ).fetchone()
    if not (exists and exists[0]):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))


def ensure_target(connection: Connection, relation: Relation, shape: Shape, rules: Rules) -> None:
    """Create the target if it is missing, else check that it can take the rows."""
    if not check_existing(connection, relation, shape, rules):
        create_table(connection, relation, shape, table_form(shape, rules))
        # Somebody else may have made it in the same moment, and otherwise.
        check_existing(connection, relation, shape, rules)
    ensure_rejected(connection, relation, shape, rules)


def check_existing(
    connection: Connection,
    relation: Relation,
    shape: Shape,
    rules: Rules,
    evolved: Table | None = None,
) -> bool:
    """Whether the target is there; refuses one that cannot take the rows, once it is `evolved`."""
    refuse_deletes(relation, shape, rules)
    check_conditions(connection, shape, rules.checks)
    form = table_form(shape, rules)
    if form.check is not None and not form.check(connection, relation, shape):
        return False
    existing = evolved or describe_table(connection, form.place(relation))
    if existing is None:
        return False
    check_target(connection, relation, existing, shape, rules)
    return True


def table_form(shape: Shape, rules: Rules) -> TableForm:
    """How the rows lie in the target."""
    return MODES[rules.mode].table(shape.key)


def physical_table(relation: Relation, shape: Shape, rules: Rules) -> Relation:
    """The table that takes the rows: the target, or the one behind its view."""
    return table_form(shape, rules).place(relation)


def fit_shape(connection: Connection, relation: Relation, shape: Shape) -> Shape:
    """The shape in the types of the target's own columns, so that old and new rows compare.

    Lengths are left out: a cast to varchar(5) cuts silently, an assignment refuses.
    """
    rows = connection.execute(
        f"SELECT a.attname, format_type(a.atttypid, -1), {OPERATORS} FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_type t ON t.oid = a.atttypid"
        " JOIN pg_type base ON base.oid = coalesce(nullif(t.typbasetype, 0), t.oid)"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (relation.schema, relation.name),
    )
    found = {name: (kind, operators) for name, kind, operators in rows}
    return replace(
        shape,
        columns=tuple(
            replace(column, target_type=kind, operators=operators)
            for column in shape.columns
            for kind, operators in [found.get(column.name, (column.target_type, None))]
        ),
    )


def check_present(
    connection: Connection,
    relation: Relation,
    watermark: Watermark,
    project: str,
    *,
    adds: bool = False,
) -> None:
    """Refuse to go on from a watermark whose rows are not there any more.

    And where loads only add rows, without a key, to begin where there are rows already.
    """
    if watermark.rows_synced == 0:
        if watermark.version == 0 and adds and _holds_rows(connection, relation):
            raise unrecorded(relation, watermark, project)
        return
    recorded = f"{watermark.rows_synced} rows are recorded in it" + (
        f" up to {watermark.value}" if watermark.value else ""
    )
    table = describe_table(connection, relation)
    way_out = (
        "to load everything again: tidegate run NAME --full-refresh; to go on from elsewhere: "
        "tidegate watermark rewind NAME VALUE --reason …"
    ).replace("NAME", sync_of(project, watermark.pipeline))
    if table is None:
        raise TargetGone(
            f"{relation} does not exist, but {recorded}",
            way_out,
        )
    if is_empty(connection, qualified(relation)):
        raise TargetGone(
            f"{relation} is empty, but {recorded}",
            way_out,
        )


def _holds_rows(connection: Connection, relation: Relation) -> bool:
    return describe_table(connection, relation) is not None and not is_empty(
        connection, qualified(relation)
    )


def unrecorded(relation: Relation, watermark: Watermark, project: str) -> TargetUnknown:
    """Nobody adds rows to those of a target of which no load is recorded: they may be the same,
    and nothing would tell the one from the other."""
    name = sync_of(project, watermark.pipeline)
    return TargetUnknown(
        f"{relation} holds rows, and no load of {name} into it is recorded: append would add rows "
        "that may be there already",
        f"if the ledger was lost or another loader filled it: tidegate adopt {name} --at VALUE "
        "says up to where it is complete; to load everything again in place of what is there: "
        f"tidegate run {name} --full-refresh; or choose another target",
    )


def check_target(
    connection: Connection, target: Relation, table: Table, shape: Shape, rules: Rules
) -> None:
    """Refuse a target that cannot take the rows, naming every column that stands in the way.

    `table` is what holds its rows: the target itself, or what lies behind its view.
    """
    relation = table.relation
    if table.kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        raise DestinationError(f"{relation} is not a table", "choose another target")
    problems: list[str] = []
    for column in shape.columns:
        existing = table.column(column.name)
        if existing is None:
            problems.append(
                f"it has no column {column.name}: "
                + sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
                .format(
                    qualified(relation), sql.Identifier(column.name), sql.SQL(column.target_type)
                )
                .as_string(connection)
            )
        elif existing.generated:
            problems.append(f"its column {column.name} is generated and cannot be loaded")
        elif not accepts(connection, existing.type, column.target_type):
            problems.append(
                f"its column {column.name} is {existing.type}, the rows have {column.target_type}"
                + _type_words(connection, target, table, existing, column.target_type)
            )
    mode = MODES[rules.mode]
    names = {*shape.names, *mode.table(shape.key).added}
    for column_name in _required_columns(connection, table):
        if column_name not in names:
            problems.append(
                f"its column {column_name} is NOT NULL and nothing fills it: "
                + sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
                .format(qualified(relation), sql.Identifier(column_name))
                .as_string(connection)
            )
    by_index = mode.needs_unique_index and bool(shape.key)
    if by_index and not any(set(unique) == set(shape.key) for unique in table.unique_keys):
        problems.append(
            f"it has no unique index on ({', '.join(shape.key)}): "
            + sql.SQL("ALTER TABLE {} ADD UNIQUE ({})")
            .format(qualified(relation), column_list(shape.key))
            .as_string(connection)
        )
    if mode.reinserts(shape.key):
        problems += _cascades(connection, table, rules)
    if problems:
        raise DestinationError(
            f"{relation} cannot take these rows: " + "; ".join(problems),
            "change the table, or choose another target",
        )


def _type_words(
    connection: Connection, target: Relation, table: Table, existing: Column, incoming: str
) -> str:
    """How to let a column take another type, in which zone where the types do not say so."""
    by_hand = retype_by_hand(connection, target, table, existing, incoming)
    if not needs_zone(existing.type, incoming):
        return f": {by_hand}"
    read = converted(existing.name, incoming, existing.type)
    return (
        f", and no time zone is declared between them (read it as {read.as_string(connection)} in "
        f"a query of the sync, or: {by_hand})"
    )


def retype_by_hand(
    connection: Connection, target: Relation, table: Table, existing: Column, wanted: str
) -> str:
    """Statements that can be run as they are: a view of versions holds the types it shows."""
    steps: list[sql.Composable] = [
        sql.SQL("ALTER TABLE {} {}").format(
            qualified(table.relation), retyping(connection, table.relation, existing, wanted)
        )
    ]
    if target != table.relation:
        name = qualified(target)
        row = connection.execute(_VIEW, (target.schema, target.name)).fetchone()
        if row is not None:
            steps.insert(0, sql.SQL("DROP VIEW {}").format(name))
            steps.append(sql.SQL("CREATE VIEW {} AS {}").format(name, sql.SQL(row[0])))
    return "; ".join(step.as_string(connection) for step in steps)


_VIEW = """
SELECT btrim(translate(pg_get_viewdef(c.oid), E'\\n', ' '), ' ;')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'v'
"""


def _cascades(connection: Connection, table: Table, rules: Rules) -> list[str]:
    """Rows of other tables that would go, or change, with every row that is deleted here."""
    rows = connection.execute(
        "SELECT c.conname, format('%%I.%%I', n.nspname, r.relname) FROM pg_constraint c"
        " JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace"
        " WHERE c.confrelid = %s AND c.contype = 'f' AND c.confdeltype IN ('c', 'n', 'd')"
        " AND c.conparentid = 0 ORDER BY 2, 1",
        (table.oid,),
    )
    return [
        f"{rules.mode} deletes rows that come again, and foreign key {name} of {other} would take "
        'its rows along (use mode = "merge", or a foreign key without ON DELETE)'
        for name, other in rows
    ]


def _required_columns(connection: Connection, table: Table) -> list[str]:
    """The columns that every new row must bring."""
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
        " AND attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = ''",
        (table.oid,),
    )
    columns = {name: table.column(name) for (name,) in rows}
    return [name for name, column in columns.items() if column and column.not_null]


def drop_target(connection: Connection, relation: Relation) -> None:
    """Drop the target in the caller's transaction; what is not ours stands in the way."""
    raw, rejected = VERSIONS.place(relation), rejected_table(relation)
    target = describe_table(connection, relation)
    try:
        if (
            target is not None
            and target.kind is RelationKind.VIEW
            and _has(connection, raw, set(VERSIONS.added))
        ):
            connection.execute(sql.SQL("DROP VIEW {}").format(qualified(relation)))
            connection.execute(sql.SQL("DROP TABLE {}").format(qualified(raw)))
        else:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(qualified(relation)))
        if _has(connection, rejected, set(COLUMNS)):
            connection.execute(sql.SQL("DROP TABLE {}").format(qualified(rejected)))
    except pg.DependentObjectsStillExist as error:
        raise DestinationError(
            f"{relation} cannot be dropped: {error.diag.message_detail or first_line(error)}",
            "drop those first, or leave out --drop-target; nothing was removed",
        ) from None
    except pg.WrongObjectType:
        raise DestinationError(
            f"{relation} is not a table", "leave out --drop-target; nothing was removed"
        ) from None


def _has(connection: Connection, relation: Relation, columns: set[str]) -> bool:
    table = describe_table(connection, relation)
    return table is not None and columns <= set(table.column_names)
