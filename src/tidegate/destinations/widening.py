"""Types: which column takes which values, which type is a wider one, and what widening costs."""

from __future__ import annotations

import re

from psycopg import errors as pg
from psycopg import sql

from tidegate.model.column import Column
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified

_LOOK_MILLISECONDS = 5000
_LENGTH = re.compile(r"\([0-9, -]+\)")
# Postgres casts these without being asked, and digits get lost.
_LOSSY = {
    ("integer", "real"),
    ("bigint", "real"),
    ("bigint", "double precision"),
    ("numeric", "real"),
    ("numeric", "double precision"),
}
_ZONED = {"timestamp with time zone", "time with time zone"}
_UNZONED = {"date", "timestamp without time zone", "time without time zone"}
# Growing these changes the catalog alone; every other change of type writes all rows anew.
_GROWS_IN_PLACE = {
    "character varying",
    "bit varying",
    "numeric",
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
}


def accepts(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether values of one type go into a column of another without loss."""
    if existing == incoming:
        return True
    base, incoming_base = _base(existing), _base(incoming)
    if base == incoming_base:
        return "(" not in existing or _holds(_digits(existing), _digits(incoming))
    if "(" in existing or (incoming_base, base) in _LOSSY or needs_zone(existing, incoming):
        return False
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_cast WHERE castsource = to_regtype(%s)"
        " AND casttarget = to_regtype(%s) AND castcontext = 'i')",
        (incoming, existing),
    ).fetchone()
    return bool(row and row[0])


def widens(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether a column may take the incoming type and keep every value that it has."""
    return accepts(connection, incoming, existing)


def needs_zone(left: str, right: str) -> bool:
    """Whether what values of the one type are in the other depends on a time zone, which nobody
    declared."""
    pair = {_base(left), _base(right)}
    return bool(pair & _ZONED) and bool(pair & _UNZONED)


def converted(name: str, existing: str, wanted: str) -> sql.Composed:
    """A column in another type, as a person would write it who knows the zone."""
    value: sql.Composable = sql.Identifier(name)
    if needs_zone(existing, wanted):
        moment = sql.SQL("::timestamp") if existing == "date" else sql.SQL("")
        value = sql.SQL("({}{} AT TIME ZONE '…')").format(value, moment)
    return sql.SQL("{}::{}").format(value, sql.SQL(wanted))


def retyping(
    connection: Connection, relation: Relation, existing: Column, wanted: str
) -> sql.Composed:
    """What ALTER TABLE takes to give a column another type by hand.

    Where the types know no cast, or a value does not fit, no value stays.
    """
    name, kind = sql.Identifier(existing.name), sql.SQL(wanted)
    retype = sql.SQL("ALTER COLUMN {} TYPE {} USING {}")
    value = converted(existing.name, existing.type, wanted)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SELECT NULL::{}::{}").format(sql.SQL(existing.type), kind))
            if not needs_zone(existing.type, wanted):
                connection.execute(f"SET LOCAL statement_timeout = {_LOOK_MILLISECONDS}")
                look = sql.SQL("SELECT pg_catalog.max(({})::text) FROM {}")
                connection.execute(look.format(value, qualified(relation)))
    except pg.QueryCanceled:
        pass  # too large to be looked at for the sake of a message
    except (pg.CannotCoerce, pg.DataError):
        relax = sql.SQL("ALTER COLUMN {} DROP NOT NULL, ").format(name)
        return (relax if existing.not_null else sql.Composed([])) + retype.format(
            name, kind, sql.SQL("NULL")
        )
    return retype.format(name, kind, value)


def rewrites(existing: str, incoming: str) -> bool:
    """Whether widening writes every row anew, and keeps readers out meanwhile."""
    base, incoming_base = _base(existing), _base(incoming)
    if base != incoming_base:
        return (base, incoming_base) != ("character varying", "text")
    if base not in _GROWS_IN_PLACE:
        return True
    if base == "numeric" and "(" in incoming:
        return _digits(existing)[1:] != _digits(incoming)[1:]
    return False


def _base(type_name: str) -> str:
    return _LENGTH.sub("", type_name)


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
