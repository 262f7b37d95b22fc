"""The target table: made on the first load, checked on every other."""

from __future__ import annotations

import re
from dataclasses import replace

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import DestinationError, TargetGone
from tidegate.model.column import RelationKind, Table
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, qualified

_LENGTH = re.compile(r"\([0-9, -]+\)")
# Postgres casts these without being asked, and digits get lost.
_LOSSY = {
    ("integer", "real"),
    ("bigint", "real"),
    ("bigint", "double precision"),
    ("numeric", "real"),
    ("numeric", "double precision"),
}


def ensure_target(connection: Connection, relation: Relation, shape: Shape) -> bool:
    """Create the target if it is missing, else check that it can take the rows; True if made."""
    table = describe_table(connection, relation)
    if table is not None:
        check_target(connection, table, shape)
        return False
    definitions: list[sql.Composable] = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.target_type),
            sql.SQL(" NOT NULL" if column.not_null or column.name in shape.key else ""),
        )
        for column in shape.columns
    ]
    if shape.key:
        definitions.append(sql.SQL("PRIMARY KEY ({})").format(column_list(shape.key)))
    try:
        with connection.transaction():
            exists = connection.execute(
                "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (relation.schema,)
            ).fetchone()
            if not (exists and exists[0]):
                connection.execute(
                    sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(relation.schema))
                )
            connection.execute(
                sql.SQL("CREATE TABLE {} ({})").format(
                    qualified(relation), sql.SQL(", ").join(definitions)
                )
            )
    except (pg.DuplicateTable, pg.DuplicateSchema, pg.UniqueViolation) as error:
        if isinstance(error, pg.DuplicateTable) and not describe_table(connection, relation):
            raise DestinationError(f"{relation} is not a table", "choose another target") from None
        return ensure_target(connection, relation, shape)
    except pg.InsufficientPrivilege as error:
        raise DestinationError(
            f"role {connection.info.user} may not create {relation}: {error.diag.message_primary}",
            f"GRANT CREATE ON SCHEMA {relation.schema} TO {connection.info.user}, or create the "
            "table beforehand",
        ) from None
    return True


def fit_shape(connection: Connection, relation: Relation, shape: Shape) -> Shape:
    """The shape in the types of the target's own columns, so that old and new rows compare.

    Lengths are left out: a cast to varchar(5) cuts silently, an assignment refuses.
    """
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, -1) FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (relation.schema, relation.name),
    )
    types: dict[str, str] = dict(rows.fetchall())
    return replace(
        shape,
        columns=tuple(
            replace(column, target_type=types.get(column.name, column.target_type))
            for column in shape.columns
        ),
    )


def check_present(connection: Connection, relation: Relation, watermark: Watermark) -> None:
    """Refuse to go on from a watermark whose rows are not there any more."""
    if watermark.rows_synced == 0:
        return
    recorded = f"{watermark.rows_synced} rows are recorded in it" + (
        f" up to {watermark.value}" if watermark.value else ""
    )
    table = describe_table(connection, relation)
    way_out = (
        "to load everything again: tidegate run NAME --full-refresh; to go on from elsewhere: "
        "tidegate watermark rewind NAME VALUE --reason …"
    ).replace("NAME", watermark.pipeline.rpartition(".")[2])
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


def check_target(connection: Connection, table: Table, shape: Shape) -> None:
    """Refuse a target that cannot take the rows, naming every column that stands in the way."""
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
        elif not _accepts(connection, existing.type, column.target_type):
            problems.append(
                f"its column {column.name} is {existing.type}, the rows have {column.target_type}"
            )
    names = set(shape.names)
    for column_name, has_default in _required_columns(connection, table):
        if column_name not in names and not has_default:
            problems.append(f"its column {column_name} is NOT NULL and nothing fills it")
    if shape.key and not any(set(unique) == set(shape.key) for unique in table.unique_keys):
        problems.append(
            f"it has no unique index on ({', '.join(shape.key)}): "
            + sql.SQL("ALTER TABLE {} ADD UNIQUE ({})")
            .format(qualified(relation), column_list(shape.key))
            .as_string(connection)
        )
    if problems:
        raise DestinationError(
            f"{relation} cannot take these rows: " + "; ".join(problems),
            "change the table, or choose another target",
        )


def _required_columns(connection: Connection, table: Table) -> list[tuple[str, bool]]:
    rows = connection.execute(
        "SELECT attname, atthasdef OR attidentity <> '' OR attgenerated <> '' FROM pg_attribute"
        " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attnotnull",
        (table.oid,),
    )
    return [(name, has_default) for name, has_default in rows]


def _accepts(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether values of one type go into a column of another without loss."""
    if existing == incoming:
        return True
    base, incoming_base = _LENGTH.sub("", existing), _LENGTH.sub("", incoming)
    if base == incoming_base:
        return "(" not in existing or _holds(_digits(existing), _digits(incoming))
    if "(" in existing or (incoming_base, base) in _LOSSY:
        return False
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_cast WHERE castsource = to_regtype(%s)"
        " AND casttarget = to_regtype(%s) AND castcontext = 'i')",
        (incoming, existing),
    ).fetchone()
    return bool(row and row[0])


def _holds(existing: list[int], incoming: list[int]) -> bool:
    """Whether a length, or a precision with its scale, is no tighter than another."""
    if len(existing) != len(incoming):
        return False
    if len(existing) == 2:
        whole = existing[0] - existing[1] >= incoming[0] - incoming[1]
        return whole and existing[1] >= incoming[1]
    return existing >= incoming


def _digits(type_name: str) -> list[int]:
    inside = type_name.partition("(")[2].partition(")")[0]
    return [int(part) for part in inside.split(",") if part.strip().isdigit()]
