"""Named queries beside their capability, quoted identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql

from tidegate.core.relation import Relation

_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, LiteralString]:
    """The statements of one file, by name: `ledger/fences` is ledger/sql/fences.sql."""
    pieces = _NAME.split(script(file))[1:]
    found: dict[str, LiteralString] = {}
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        if name in found:
            raise ValueError(f"{file}.sql names {name} twice")
        found[name] = body.strip().rstrip(";")
    return found


def script(file: str) -> LiteralString:
    """A whole file, such as a schema."""
    room, _, name = file.partition("/")
    return files("tidegate").joinpath(room, "sql", f"{name}.sql").read_text(encoding="utf-8")


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
