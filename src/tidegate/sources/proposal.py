"""What could be synced from a database: a key and a cursor for every table that has them.

A column that only new rows fill, such as created_at, is proposed to a person and never taken
without one: changes of old rows would be missed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.model.column import Column, Table
from tidegate.model.cursor import CursorType
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection
from tidegate.sources.relations import list_candidates

_WHEN = r"(?:_(?:at|on|date|time|datetime|timestamp|ts|utc|tz))*"
_PREFIX = r"(?:last_|date_|time_|row_|record_|sys_)?"
_CHANGED = re.compile(rf"{_PREFIX}(?:updated?|modified|modification|modify|changed?){_WHEN}|mtime")
_CREATED = re.compile(
    rf"{_PREFIX}(?:created?|creation|inserted?|added|occurred|recorded|logged|received){_WHEN}"
    r"|event_(?:time|date|at|ts)|timestamp|ts|ctime"
)
# A number so called counts seconds; a "version" counts the changes of one row and orders nothing.
_EPOCH = re.compile(r".*_(?:at|on|time|ts|timestamp|utc)|[cm]time|ts|timestamp")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TYPES = tuple(CursorType)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sync that works as it stands; `notes` say what its owner should know."""

    relation: Relation
    key: tuple[str, ...]
    is_primary_key: bool
    cursor: str
    nullable: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A relation for which nothing safe can be proposed, and why."""

    relation: Relation
    reason: str


def look(connection: Connection) -> tuple[list[Proposal], list[LeftOut]]:
    """Go through the user's own relations and propose what can be synced with merge."""
    proposals: list[Proposal] = []
    left_out: list[LeftOut] = []
    for candidate in list_candidates(connection):
        if candidate.is_part_of_another:
            continue
        relation, reason = candidate.relation, candidate.reason_against
        if reason is None and candidate.kind_words is not None:
            reason = (
                f"{candidate.kind_words} has no key of its own: declare key and cursor to sync it"
            )
        table = None if reason else describe_table(connection, relation)
        if table is None:
            left_out.append(LeftOut(relation, reason or "it was dropped a moment ago"))
            continue
        found = propose(table, candidate.serials)
        if isinstance(found, Proposal):
            proposals.append(found)
        else:
            left_out.append(found)
    return proposals, left_out


def propose(table: Table, serials: frozenset[str] = frozenset()) -> Proposal | LeftOut:
    """A key and a cursor for one table; `serials` are columns filled from a sequence."""
    key, is_primary = propose_key(table)
    if not key:
        return LeftOut(table.relation, "no primary key, and no unique index without NULLs")
    cursor, notes = _cursor(table, key, serials)
    if cursor is None:
        return LeftOut(
            table.relation,
            "no column that looks like a cursor: one of time or a number that rises with every "
            "change, such as updated_at",
        )
    if cursor.name not in table.leading_index_columns:
        notes = (*notes, f"no index begins with {cursor.name}: each run reads the whole table")
    return Proposal(table.relation, key, is_primary, cursor.name, not cursor.not_null, notes)


def propose_key(table: Table) -> tuple[tuple[str, ...], bool]:
    """The primary key, else the shortest unique index without NULLs; whether it is the former."""
    if table.primary_key:
        return table.primary_key, True
    required = {
        column.name
        for column in table.columns
        if column.not_null and column.name.strip() and not _CONTROL_CHARACTER.search(column.name)
    }
    usable = [unique for unique in table.unique_keys if set(unique) <= required]
    return (min(usable, key=len), False) if usable else ((), False)


def propose_cursor(table: Table) -> Column | None:
    """The best column that rises with every change, such as updated_at."""
    ranked = [
        (_rank(table, column), column)
        for column in table.columns
        if _place(column, (), frozenset()) == 0
    ]
    return min(ranked, key=lambda one: one[0])[1] if ranked else None


def _cursor(
    table: Table, key: tuple[str, ...], serials: frozenset[str]
) -> tuple[Column | None, tuple[str, ...]]:
    """The best column: stamped at every change, else stamped at creation, else a serial key."""
    ranked = [
        (place, _rank(table, column), column)
        for column in table.columns
        if (place := _place(column, key, serials)) is not None
    ]
    if not ranked:
        return None, ()
    place, _, column = min(ranked, key=lambda one: one[:2])
    if place == 0:
        return column, ()
    return column, (f"{column.name} stays when a row changes: new rows only, unless it rises too",)


def _place(column: Column, key: tuple[str, ...], serials: frozenset[str]) -> int | None:
    kind = CursorType.of(column.wire)
    if kind is None or _CONTROL_CHARACTER.search(column.name) or not column.name.strip():
        return None
    name = _CAMEL.sub("_", column.name.strip()).lower().replace(" ", "_").replace("-", "_")
    if kind.is_integer and not _EPOCH.fullmatch(name):
        return 2 if key == (column.name,) and column.name in serials else None
    if _CHANGED.fullmatch(name):
        return 0
    return 1 if _CREATED.fullmatch(name) else None


def _rank(table: Table, column: Column) -> tuple[int, bool, bool, int]:
    kind = CursorType.of(column.wire)
    assert kind is not None
    return (
        _TYPES.index(kind),
        column.name not in table.leading_index_columns,
        not column.not_null,
        table.column_names.index(column.name),
    )
