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


class OwnSQL(sql.SQL):
    """SQL that a user wrote: its names are looked up by the role's own search_path.

    Whatever of ours stands beside it in a statement names pg_catalog for every function, and
    for operators between types that are not exactly those of a built-in one.
    """


def holds_own_sql(query: object) -> bool:
    """Whether a statement has SQL of a user in it."""
    if isinstance(query, sql.Composed):
        return any(holds_own_sql(part) for part in query)
    return isinstance(query, OwnSQL)


def operator(symbol: str, schema: str | None) -> sql.Composable:
    """An operator, looked up in this schema alone if one is given."""
    if schema is None:
        return sql.SQL(symbol)
    return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(symbol))


def subquery(text: str, name: str = "q") -> sql.Composed:
    """A user's SELECT as something to read from; a comment at its end stays its own."""
    return sql.SQL("({}\n) AS {}").format(OwnSQL(text), sql.Identifier(name))


def condition(text: str) -> sql.Composed:
    """A user's condition, closed off from what stands around it."""
    return sql.SQL("({}\n)").format(OwnSQL(text))


def from_text(value: sql.Composable, type_name: str) -> sql.Composed:
    """A text as the value that the type prints so.

    A cast of text to regclass looks for a relation of that name, whatever is printed for one that
    is none (-) or gone (a number).
    """
    if type_name == "regclass":
        return sql.SQL("pg_catalog.regclassin(pg_catalog.textout({}))").format(value)
    return sql.SQL("{}::{}").format(value, sql.SQL(type_name))


def statement(file: str, name: str, **parts: sql.Composable) -> sql.Composed:
    """A named statement with its identifiers filled in; to be run with parameters, if only {}."""
    # Next to parameters a percent sign is written twice, and a name may hold one.
    literal = {key: sql.SQL(part.as_string(None).replace("%", "%%")) for key, part in parts.items()}
    return sql.SQL(statements(file)[name]).format(**literal)
