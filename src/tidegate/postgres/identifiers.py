"""Quoted identifiers: the only way a user's name gets into a statement."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from tidegate.model.relation import Relation
from tidegate.sql import statements


def qualified(relation: Relation) -> sql.Identifier:
    return sql.Identifier(relation.schema, relation.name)


def column_list(names: Iterable[str], prefix: str | None = None) -> sql.Composed:
    """`"a", "b"`, or `t."a", t."b"` with a prefix."""
    return sql.SQL(", ").join(
        sql.Identifier(name) if prefix is None else sql.Identifier(prefix, name) for name in names
    )


def subquery(text: str, name: str = "q") -> sql.Composed:
    """A user's SELECT as something to read from; a comment at its end stays its own."""
    return sql.SQL("({}\n) AS {}").format(sql.SQL(text), sql.Identifier(name))


def condition(text: str) -> sql.Composed:
    """A user's condition, closed off from what stands around it."""
    return sql.SQL("({}\n)").format(sql.SQL(text))


def statement(file: str, name: str, **parts: sql.Composable) -> sql.Composed:
    """A named statement with its identifiers filled in; to be run with parameters, if only {}."""
    # Next to parameters a percent sign is written twice, and a name may hold one.
    literal = {key: sql.SQL(part.as_string(None).replace("%", "%%")) for key, part in parts.items()}
    return sql.SQL(statements(file)[name]).format(**literal)
