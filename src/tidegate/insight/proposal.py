"""What could be synced from a database: a key and a cursor for every table that has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.model.column import Column, RelationKind, Table
from tidegate.model.cursor import CursorType
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection

# The user's own relations: neither the system's, nor an extension's, nor a partition of another
# table, nor in a schema where Tidegate keeps its own tables.
_RELATIONS = r"""
SELECT n.nspname, c.relname, c.relkind,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname FROM pg_attribute a
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%')
             ORDER BY a.attnum)::text[]
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'
  AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass
                  AND e.objid = c.oid AND e.deptype = 'e')
  AND NOT EXISTS (SELECT FROM pg_class own WHERE own.relnamespace = n.oid
                  AND own.relname IN ('watermark_log', 'fence_tokens'))
ORDER BY 1, 2
LIMIT 2000
"""

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
    for schema, name, kind, readable, serials in connection.execute(_RELATIONS).fetchall():
        relation = Relation(schema, name)
        reason = _reason_against(relation, RelationKind(kind), readable=readable)
        table = None if reason else describe_table(connection, relation)
        if table is None:
            left_out.append(LeftOut(relation, reason or "it was dropped a moment ago"))
            continue
        found = propose(table, frozenset(serials))
        if isinstance(found, Proposal):
            proposals.append(found)
        else:
            left_out.append(found)
    return proposals, left_out


def propose(table: Table, serials: frozenset[str] = frozenset()) -> Proposal | LeftOut:
    """A key and a cursor for one table; `serials` are columns filled from a sequence."""
    key, is_primary = _key(table)
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


def _reason_against(relation: Relation, kind: RelationKind, *, readable: bool) -> str | None:
    if _CONTROL_CHARACTER.search(relation.schema + relation.name):
        return "its name holds a control character, which tidegate.toml cannot spell"
    if not readable:
        return "this role may not read it"
    if kind not in (RelationKind.TABLE, RelationKind.PARTITIONED):
        words = {
            RelationKind.VIEW: "a view",
            RelationKind.MATERIALIZED_VIEW: "a materialized view",
            RelationKind.FOREIGN: "a foreign table",
        }
        return f"{words[kind]} has no key of its own: declare key and cursor to sync it"
    return None


def _key(table: Table) -> tuple[tuple[str, ...], bool]:
    if table.primary_key:
        return table.primary_key, True
    required = {
        column.name
        for column in table.columns
        if column.not_null and column.name.strip() and not _CONTROL_CHARACTER.search(column.name)
    }
    usable = [unique for unique in table.unique_keys if set(unique) <= required]
    return (min(usable, key=len), False) if usable else ((), False)


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
