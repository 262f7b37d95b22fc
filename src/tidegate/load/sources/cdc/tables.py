"""The tables behind a published one, and what became of them that no log tells.

A partition that comes with its rows or goes with them, one that is emptied by itself, and an ALTER
that gives every row another value are in no log. What each of them leaves in the catalog is
remembered with the watermark and compared, and where nothing shows that it was harmless, it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from psycopg import sql

from tidegate.load.sources.cdc import pgoutput
from tidegate.load.sources.cdc.pgoutput import Damaged, damaged
from tidegate.load.sources.cdc.slot import UNCOPIED, Tables, TableState
from tidegate.load.sources.postgres import PostgresSource
from tidegate.postgres.connection import Connection

# Read in the caller's snapshot, as functions of the catalog would not be. A column that has a
# default is known by that: VACUUM FULL touches a column that was added with one, and an ALTER of
# its type makes the default anew. A partition is born as one where a column is still as it was
# made, or as it was given its default before it was one: to attach a table changes all columns.
_TABLES = """
WITH RECURSIVE members AS (
    SELECT %(oid)s::oid AS oid, 0::oid AS parent, 0::bigint AS link, 0::bigint AS command
    UNION ALL
    SELECT i.inhrelid, i.inhparent, i.xmin::text::bigint, i.cmin::text::bigint
    FROM members m JOIN pg_inherits i ON i.inhparent = m.oid AND NOT i.inhdetachpending
)
SELECT m.oid::bigint, format('%%I.%%I', n.nspname, c.relname), m.link, c.relfilenode::bigint,
       c.reltoastrelid::bigint,
       (SELECT coalesce(left(md5(string_agg(concat_ws(':', a.attnum, a.atttypid, a.atttypmod,
                   d.oid, CASE WHEN d.oid IS NULL THEN a.xmin::text END), ' '
                   ORDER BY a.attnum)), 8), '')
        FROM pg_attribute a
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attname = ANY (%(columns)s)),
       coalesce(pg_relation_size(m.oid), 0) = 0,
       m.parent::bigint, c.xmin::text::bigint,
       EXISTS (SELECT FROM pg_attribute a
               JOIN pg_attribute s ON s.attrelid = a.attrelid AND s.attnum = -1 AND s.xmin = a.xmin
               LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
               WHERE a.attrelid = m.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND (a.cmin = s.cmin
                      OR (d.xmin = a.xmin AND d.cmin = a.cmin AND a.xmin::text::bigint = m.link
                          AND a.cmin::text::bigint < m.command)))
FROM members m JOIN pg_class c ON c.oid = m.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 2
"""
_XIDS = 1 << 32


@dataclass(frozen=True, slots=True)
class Found:
    """The tables as they are now; the rest is only of use at this moment."""

    tables: Tables
    parents: dict[int, int]
    written: dict[int, int]
    """which transaction last changed what the catalog says of each"""
    born: frozenset[int]
    """those that were made as partitions, and not attached"""


@dataclass(frozen=True, slots=True)
class Logged:
    """What the log has of all that has not been loaded yet."""

    truncations: frozenset[int]
    """transactions that emptied the published table"""
    tables: frozenset[int]
    """tables, partitions among them, with changes of rows"""


def read_tables(connection: Connection, source: PostgresSource) -> Found:
    """The published table and its partitions, as the session's snapshot shows them."""
    row = connection.execute(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    ).fetchone()
    assert row is not None
    columns = sorted({*source.key, *(column.name for column in source.columns)})
    states: list[TableState] = []
    parents: dict[int, int] = {}
    written: dict[int, int] = {}
    born: set[int] = set()
    for found in connection.execute(_TABLES, {"oid": source.table.oid, "columns": columns}):
        *state, parent, xid, is_born = found
        one = TableState(*state)
        states.append(one)
        parents[one.oid], written[one.oid] = parent, xid
        if is_born:
            born.add(one.oid)
    return Found(Tables(row[0], tuple(states)), parents, written, frozenset(born))


def read_logged(messages: Iterator[tuple[str, bytes]], slot: str, table: int) -> Logged:
    """Look through the messages of a slot for what they say of whole tables."""
    truncations: set[int] = set()
    tables: set[int] = set()
    xid, lsn = 0, "its beginning"
    try:
        for lsn, data in messages:  # noqa: B007
            kind = data[0]
            if kind == pgoutput.BEGIN:
                xid = pgoutput.read_xid(data)
            elif kind == pgoutput.RELATION:
                tables.add(pgoutput.read_relation(data).oid)
            elif kind == pgoutput.TRUNCATE and table in pgoutput.read_truncate(data):
                truncations.add(xid)
    except Damaged as error:
        raise damaged(slot, lsn, str(error)) from None
    except (IndexError, struct.error) as error:
        raise damaged(slot, lsn, "it is cut off") from error
    return Logged(frozenset(truncations), frozenset(tables))


def find_unlogged(
    connection: Connection, before: Tables, found: Found, look: Callable[[], Logged]
) -> list[str]:
    """What happened since and is in no log, in words; `look` is asked only where it may tell."""
    old, now = before.by_oid(), found.tables.by_oid()
    said: list[str] = []
    suspects: list[tuple[TableState, TableState]] = []
    for state in now.values():
        known = old.get(state.oid)
        if known is None or known.link == UNCOPIED:
            if known or (state.node and not _came_empty(state, old, found)):
                said.append(
                    f"partition {state.name} was attached, and nothing shows that it was empty then"
                )
        elif known.link != state.link:
            said.append(f"partition {state.name} was detached and attached again")
        elif state.is_rewritten(known):
            said.append(
                f"{state.name} was rewritten by ALTER TABLE, which may have given its rows other "
                "values"
            )
        elif (
            state.node != known.node
            and state.link
            and not _has_rows_of(connection, state, before.since)
        ):
            suspects.append((known, state))
    gone = [one for one in old.values() if one.oid not in now and one.node]
    if not suspects and not gone:
        return said
    logged = look()
    # Under a savepoint, all were emptied by one transaction that the log does not name.
    by = {found.written[state.oid] for _, state in suspects}
    leaves = {one.oid for one in old.values() if one.node}
    together = len(by) == 1 and leaves == {state.oid for _, state in suspects}
    explained = by if together and logged.truncations else logged.truncations
    said += [
        f"partition {state.name} was emptied by itself, by TRUNCATE"
        for known, state in suspects
        if found.written[state.oid] not in explained and not _stayed_empty(known, logged)
    ]
    said += [
        f"partition {one.name} was detached or dropped"
        for one in gone
        if not _stayed_empty(one, logged)
    ]
    return said


def _came_empty(state: TableState, old: Mapping[int, TableState], found: Found) -> bool:
    """Whether all rows of a new partition came when it was one already.

    The file of a table has the table's own number until it is rewritten or emptied.
    """
    if state.node != state.oid:
        return False
    if state.empty:
        return True
    oid = state.oid
    while oid in found.born and found.parents[oid] not in old:
        oid = found.parents[oid]
    return oid in found.born


def _stayed_empty(known: TableState, logged: Logged) -> bool:
    return known.empty and known.oid not in logged.tables


def _has_rows_of(connection: Connection, state: TableState, since: int) -> bool:
    """Whether a row is left of the time before: VACUUM FULL leaves them, and TRUNCATE does not.

    A row's transaction has 32 bits: it is an old one unless it lies between then and now.
    """
    row = connection.execute("SELECT has_table_privilege(%s::oid, 'SELECT')", (state.oid,))
    if row.fetchone() != (True,):
        return False
    found = connection.execute(
        sql.SQL(
            "SELECT EXISTS (SELECT FROM ONLY {table} WHERE (xmin::text::bigint - {since} % {xids}"
            " + {xids}) % {xids} > pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {since})"
        ).format(table=sql.SQL(state.name), since=sql.Literal(since), xids=sql.Literal(_XIDS))
    ).fetchone()
    return bool(found and found[0])
