"""Key and cursor proposed for each table of a database."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Column, Glob, Pattern, Relation, RelationKind, Table
from tidegate.core.watermark import CursorType
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection

MOST = 100_000
EVERYTHING = Pattern(Glob("*"), Glob("*"))
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_WORDS = {
    RelationKind.VIEW: "a view",
    RelationKind.MATERIALIZED_VIEW: "a materialized view",
    RelationKind.FOREIGN: "a foreign table",
}

# The schemas where Tidegate keeps its own tables are known by tables that only it has.
_RELATIONS = r"""
SELECT n.nspname, c.relname, c.relkind,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname FROM pg_attribute a
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND (a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%%')
             ORDER BY a.attnum)::text[],
       c.relispartition,
       (SELECT x.extname FROM pg_depend e JOIN pg_extension x ON x.oid = e.refobjid
        WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e' LIMIT 1),
       EXISTS (SELECT FROM pg_class own WHERE own.relnamespace = n.oid
               AND own.relname IN ('watermark_log', 'fence_tokens'))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%%'
  AND n.nspname LIKE %(schema)s AND c.relname LIKE %(table)s
ORDER BY 1, 2
LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A relation whose name matches; `serials` are its columns filled from a sequence."""

    relation: Relation
    kind: RelationKind
    readable: bool
    serials: frozenset[str]
    is_partition: bool
    extension: str | None
    is_ours: bool

    @property
    def reason_against(self) -> str | None:
        """Why it cannot be loaded with others of its kind, if it cannot."""
        if self.is_ours:
            return "one of Tidegate's own tables"
        if self.extension is not None:
            return f"belongs to the extension {self.extension}"
        if self.is_partition:
            return "a partition; the table that it belongs to holds its rows"
        if _CONTROL_CHARACTER.search(self.relation.schema + self.relation.name):
            return "its name holds a control character, which tidegate.toml cannot spell"
        if not self.readable:
            return "this role may not read it"
        return None

    @property
    def is_part_of_another(self) -> bool:
        """Whether a person would not count it: a partition, an extension's, one of ours."""
        return self.is_ours or self.is_partition or self.extension is not None

    @property
    def is_loadable_table(self) -> bool:
        return self.reason_against is None and self.kind_words is None

    @property
    def kind_words(self) -> str | None:
        """What it is, if it is no table of its own."""
        return _WORDS.get(self.kind)


def list_candidates(connection: Connection, pattern: Pattern = EVERYTHING) -> list[Candidate]:
    """Every relation that the pattern matches, the system's own left aside."""
    schema = pattern.schema or Glob("*")
    rows = connection.execute(
        _RELATIONS, {"schema": schema.like, "table": pattern.table.like, "limit": MOST + 1}
    ).fetchall()
    if len(rows) > MOST:
        raise DeclarationError(
            f"{pattern} matches more than {MOST:,} relations",
            "choose a narrower pattern, or several",
        )
    return [
        Candidate(
            relation=Relation(schema_name, name),
            kind=RelationKind(kind),
            readable=readable,
            serials=frozenset(serials),
            is_partition=is_partition,
            extension=extension,
            is_ours=ours,
        )
        for schema_name, name, kind, readable, serials, is_partition, extension, ours in rows
    ]


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
class SkippedTable:
    """A relation for which nothing safe can be proposed, and why."""

    relation: Relation
    reason: str


def list_proposals(connection: Connection) -> tuple[list[Proposal], list[SkippedTable]]:
    """Go through the user's own relations and propose what can be synced with merge."""
    proposals: list[Proposal] = []
    left_out: list[SkippedTable] = []
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
            left_out.append(SkippedTable(relation, reason or "it was dropped a moment ago"))
            continue
        found = propose(table, candidate.serials)
        if isinstance(found, Proposal):
            proposals.append(found)
        else:
            left_out.append(found)
    return proposals, left_out


def propose(table: Table, serials: frozenset[str] = frozenset()) -> Proposal | SkippedTable:
    """A key and a cursor for one table; `serials` are columns filled from a sequence."""
    key, is_primary = propose_key(table)
    if not key:
        return SkippedTable(table.relation, "no primary key, and no unique index without NULLs")
    cursor, notes = _cursor(table, key, serials)
    if cursor is None:
        return SkippedTable(
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
