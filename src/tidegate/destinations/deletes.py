"""Batches that carry deletes: a flag beside each staged row says whether its key is gone."""

from __future__ import annotations

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode, Rules
from tidegate.model.shape import Shape
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list


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
