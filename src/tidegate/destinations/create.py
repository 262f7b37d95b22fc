"""Making the target: the table, or the table of versions and the view of the newest."""

from __future__ import annotations

from psycopg import errors as pg
from psycopg import sql

from tidegate.destinations import append
from tidegate.errors import DestinationError
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, qualified


def create_table(connection: Connection, relation: Relation, shape: Shape) -> None:
    """Make a table for the rows, and its schema if need be."""
    _create(connection, relation, relation, table_statements(relation, shape))


def create_versions(connection: Connection, relation: Relation, shape: Shape) -> None:
    """Make the table of all versions and the view of the newest over it."""
    _create(connection, relation, append.raw_table(relation), version_statements(relation, shape))
    append.create_view(connection, relation, shape)


def table_statements(relation: Relation, shape: Shape) -> list[sql.Composed]:
    return [_create_table(relation, table_parts(shape))]


def version_statements(relation: Relation, shape: Shape) -> list[sql.Composed]:
    return [
        _create_table(append.raw_table(relation), version_parts(shape)),
        append.create_index(relation, shape),
    ]


def table_parts(shape: Shape) -> list[sql.Composed]:
    """What stands inside CREATE TABLE."""
    key = [sql.SQL("PRIMARY KEY ({})").format(column_list(shape.key))] if shape.key else []
    return [*definitions(shape), *key]


def version_parts(shape: Shape) -> list[sql.Composed]:
    """The same for a table of all versions."""
    added = (
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
        for name, kind in append.ADDED.items()
    )
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


def _create_schema(connection: Connection, schema: str) -> None:
    exists = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (schema,)
    ).fetchone()
    if not (exists and exists[0]):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
