"""What `changes = "snapshot"` cannot do, each with the way out."""

from __future__ import annotations

from tidegate.errors import DeclarationError, SourceError
from tidegate.model.column import RelationKind, Table
from tidegate.model.cursor import CursorType, NullPolicy
from tidegate.model.rules import Duplicates, Mode
from tidegate.model.sync import Sync
from tidegate.postgres.connect import Connection
from tidegate.sources.horizon import CursorColumn
from tidegate.sources.written import parts_of

_SNAPSHOT = 'changes = "snapshot"'
_KINDS = {
    RelationKind.VIEW: "a view",
    RelationKind.FOREIGN: "a foreign table",
    RelationKind.QUERY: "a query",
}


def check_declared(sync: Sync) -> None:
    """Refuse what the declaration alone shows."""
    name = f"sync {sync.name}: {_SNAPSHOT}"
    if sync.mode is Mode.REPLACE:
        raise DeclarationError(
            f"{name} loads what has changed, and replace loads everything each time",
            'use mode = "merge", or remove changes',
        )
    if sync.mode is Mode.APPEND and not sync.key:
        raise DeclarationError(
            f"{name} reads some rows twice, and append without a key would add them again",
            'use mode = "merge", or declare a key, so that every version is kept once',
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f"{name} sees only the rows that were written, so it cannot tell which of several "
            'with one key is the newest, as duplicates = "newest" asks for',
            'choose a unique key, or use changes = "cursor"',
        )
    if (sync.cursor is None) != (sync.lookback in (None, 0)):
        lacking, given = (
            ("lookback", "cursor") if sync.cursor is not None else ("cursor", "lookback")
        )
        raise DeclarationError(
            f"{name} has a {given} and no {lacking}: together they say how far back rows are "
            "looked for",
            f"declare the {lacking} too, or remove the {given} to look at the whole table",
        )
    if sync.null_cursor in (NullPolicy.RAISE, NullPolicy.EXCLUDE):
        raise DeclarationError(
            f'{name} loads rows without a cursor too, so null_cursor = "{sync.null_cursor}" means '
            "nothing",
            "remove it, or leave such rows out with where",
        )


def check_source(
    connection: Connection, table: Table, cursor: CursorColumn | None, sync: Sync
) -> None:
    """Refuse a source that does not show which transaction wrote a row."""
    name, relation = f"sync {sync.name}: {_SNAPSHOT}", table.relation
    other = 'use changes = "cursor"'
    if table.kind in _KINDS:
        what = _KINDS[table.kind]
        shown = what if table.kind is RelationKind.QUERY else f"{relation} is {what}, and {what}"
        raise DeclarationError(
            f"{name} needs a table: {shown} does not show which transaction wrote a row",
            f"sync the table behind it, or {other}",
        )
    if cursor is not None and cursor.type is CursorType.XID8:
        raise DeclarationError(
            f"{name} beside cursor {cursor.name}: an xid8 already tells which transaction wrote "
            "a row",
            other,
        )
    refuse_standby(connection, sync)
    if not table.is_wholly_readable:
        role = connection.info.user
        raise SourceError(
            f"{name} reads which transaction wrote a row, and role {role} may read only some "
            f"columns of {relation}",
            f"GRANT SELECT ON {relation} TO {role}",
        )
    for part in parts_of(connection, table.oid):
        if part.kind == "f":
            raise DeclarationError(
                f"{name}: {part.name}, a part of {relation}, is a foreign table, which does not "
                "show which transaction wrote a row",
                other,
            )
        if part.access_method != "heap":
            raise DeclarationError(
                f"{name}: {part.name} is stored by {part.access_method}, which need not show which "
                "transaction wrote a row",
                other,
            )


def check_xid_cursor(connection: Connection, sync: Sync) -> None:
    """Refuse what a cursor that is the id of a transaction cannot do."""
    refuse_standby(connection, sync)
    if sync.lake_target and sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f"sync {sync.name}: cursor {sync.cursor} is an xid8, which is text in a lake and tells "
            'no newer row from an older one there, as duplicates = "newest" asks for',
            "choose a unique key, or another cursor",
        )


def refuse_standby(connection: Connection, sync: Sync) -> None:
    """Refuse a server that does not show which transactions are open."""
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise SourceError(
            f"sync {sync.name}: connection {sync.source.connection} is a standby, which does not "
            "show which transactions are open, so rows would be missed",
            "connect to the primary; a standby can be followed by a timestamp, with settle and "
            "lookback",
        )
