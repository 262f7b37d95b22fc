"""Dropping a target with all that was made for it: versions behind a view, rejected rows."""

from __future__ import annotations

from psycopg import errors as pg
from psycopg import sql

from tidegate.destinations import append
from tidegate.destinations.quarantine import COLUMNS, rejected_table
from tidegate.errors import DestinationError
from tidegate.model.column import RelationKind
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import qualified


def drop_target(connection: Connection, relation: Relation) -> None:
    """Drop the target in the caller's transaction; what is not ours stands in the way."""
    raw, rejected = append.raw_table(relation), rejected_table(relation)
    target = describe_table(connection, relation)
    try:
        if (
            target is not None
            and target.kind is RelationKind.VIEW
            and _has(connection, raw, set(append.ADDED))
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
