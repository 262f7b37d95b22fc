"""Types: which column takes which values, which type is a wider one, and what widening costs."""

from __future__ import annotations

import re

from tidegate.postgres.connect import Connection

_LENGTH = re.compile(r"\([0-9, -]+\)")
# Postgres casts these without being asked, and digits get lost.
_LOSSY = {
    ("integer", "real"),
    ("bigint", "real"),
    ("bigint", "double precision"),
    ("numeric", "real"),
    ("numeric", "double precision"),
}
# What old values would become depends on a time zone that nobody declared.
_ZONED = {
    ("date", "timestamp with time zone"),
    ("timestamp without time zone", "timestamp with time zone"),
}
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
    if "(" in existing or (incoming_base, base) in _LOSSY:
        return False
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_cast WHERE castsource = to_regtype(%s)"
        " AND casttarget = to_regtype(%s) AND castcontext = 'i')",
        (incoming, existing),
    ).fetchone()
    return bool(row and row[0])


def widens(connection: Connection, existing: str, incoming: str) -> bool:
    """Whether a column may take the incoming type and keep every value that it has."""
    if (_base(existing), _base(incoming)) in _ZONED:
        return False
    return accepts(connection, incoming, existing)


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
