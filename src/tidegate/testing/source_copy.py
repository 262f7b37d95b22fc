"""The source table built again in a database of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.errors import DeclarationError, SourceError, UsageError
from tidegate.core.relation import Relation, RelationKind, Table
from tidegate.core.watermark import CursorType
from tidegate.load.context import Context
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.catalog import FIRST_USER_OID
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list, qualified
from tidegate.testing import replay
from tidegate.testing.oracle import rule_of
from tidegate.testing.sample import (
    SAMPLE,
    SampleSize,
    column_value,
    invent_sample,
    make_sample_table,
    read_sample,
)
from tidegate.testing.sandbox import FreshDatabases

_COLUMNS = """
SELECT a.attname, a.atttypid::int8, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_TYPE = """
SELECT n.nspname, t.typname, t.typtype, t.typcategory = 'A' AND t.typelem <> 0, t.typelem::int8,
       t.typbasetype::int8, format_type(t.typbasetype, t.typtypmod), t.typnotnull,
       t.typrelid::int8, e.extname
FROM pg_type t
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
LEFT JOIN pg_extension e ON e.oid = d.refobjid
WHERE t.oid = %s
"""
_ENUM = "SELECT enumlabel FROM pg_enum WHERE enumtypid = %s ORDER BY enumsortorder"
_CHECKS = (
    "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = %s AND contype = 'c'"
)
_RANGE = "SELECT rngsubtype::int8, format_type(rngsubtype, NULL) FROM pg_range WHERE rngtypid = %s"


@dataclass(slots=True)
class Rebuilding:
    """Builds one table; both sessions must show every type with its schema (empty search_path).

    Type names and definitions are the catalog's own words, which quote every name in them.
    """

    source: Connection
    copy: Connection
    notes: list[str] = field(default_factory=list)
    _known: dict[int, bool] = field(default_factory=dict)

    def table(self, table: Table, cursor: str | None) -> dict[str, str]:
        """Create it, with its keys and an index on the cursor; the type of each column."""
        types: dict[str, str] = {}
        for name, oid, type_name in self.source.execute(_COLUMNS, (table.oid,)).fetchall():
            usable = self._type(oid)
            types[name] = type_name if usable else "text"
            if not usable:
                self.notes.append(f"column {name} is text here: {type_name} cannot be built again")
        self._schema(table.relation.schema)
        columns = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(column.name),
                sql.SQL(types[column.name]),
                sql.SQL(" NOT NULL" if column.not_null else ""),
            )
            for column in table.columns
        ]
        target = qualified(table.relation)
        self.copy.execute(
            sql.SQL("CREATE TABLE {} ({})").format(target, sql.SQL(", ").join(columns))
        )
        if table.primary_key:
            self._try(
                sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(
                    target, column_list(table.primary_key)
                ),
                "the primary key",
            )
        for unique in table.unique_keys:
            if unique != table.primary_key:
                self._try(
                    sql.SQL("ALTER TABLE {} ADD UNIQUE ({})").format(target, column_list(unique)),
                    f"the unique key ({', '.join(unique)})",
                )
        if cursor is not None:
            self.copy.execute(
                sql.SQL("CREATE INDEX ON {} ({})").format(target, sql.Identifier(cursor))
            )
        if table.kind in (RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW):
            self.notes.append(f"the view {table.relation} is a table here, filled with its rows")
        return types

    def _type(self, oid: int) -> bool:
        """See to it that a type exists in the copy; False when it cannot."""
        if oid < FIRST_USER_OID:
            return True
        if oid not in self._known:
            self._known[oid] = self._make_type(oid)
        return self._known[oid]

    def _make_type(self, oid: int) -> bool:
        row: Any = self.source.execute(_TYPE, (oid,)).fetchone()
        schema, name, kind, is_array, element, base, base_name, not_null, relation, extension = row
        self._schema(schema)
        if extension is not None:
            return self._try(
                sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA {}").format(
                    sql.Identifier(extension), sql.Identifier(schema)
                )
            )
        if is_array:
            return self._type(element)
        target = qualified(Relation(schema, name))
        if kind == "e":
            labels = [sql.Literal(label) for (label,) in self.source.execute(_ENUM, (oid,))]
            return self._try(
                sql.SQL("CREATE TYPE {} AS ENUM ({})").format(target, sql.SQL(", ").join(labels))
            )
        if kind == "d":
            return self._type(base) and self._domain(oid, target, base_name, not_null)
        if kind == "c":
            return self._composite(relation, target)
        if kind == "r":
            found: Any = self.source.execute(_RANGE, (oid,)).fetchone()
            return self._type(found[0]) and self._try(
                sql.SQL("CREATE TYPE {} AS RANGE (SUBTYPE = {})").format(target, sql.SQL(found[1]))
            )
        return False

    def _domain(self, oid: int, target: sql.Composable, base: str, not_null: bool) -> bool:
        checks = [definition for (definition,) in self.source.execute(_CHECKS, (oid,))]
        plain = sql.SQL("CREATE DOMAIN {} AS {}{}").format(
            target, sql.SQL(base), sql.SQL(" NOT NULL" if not_null else "")
        )
        checked = plain + sql.SQL("".join(f" {check}" for check in checks))
        # A check may call a function that is not here; the type is of use without it.
        return self._try(checked) or self._try(plain)

    def _composite(self, relation: int, target: sql.Composable) -> bool:
        attributes = self.source.execute(_COLUMNS, (relation,)).fetchall()
        if not all(self._type(oid) for _, oid, _ in attributes):
            return False
        parts = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_name))
            for name, _, type_name in attributes
        ]
        return self._try(
            sql.SQL("CREATE TYPE {} AS ({})").format(target, sql.SQL(", ").join(parts))
        )

    def _schema(self, name: str) -> None:
        self.copy.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))

    def _try(self, statement: sql.SQL | sql.Composed, what: str | None = None) -> bool:
        try:
            self.copy.execute(statement)
        except psycopg.Error as error:
            if what is not None:
                said = error.diag.message_primary or str(error)
                self.notes.append(f"{what} could not be built again: {said}")
            return False
        return True


@dataclass(frozen=True, slots=True)
class SourceCopy:
    """A sample in a database of its own, and what is known about it."""

    databases: FreshDatabases
    name: str
    table: Table
    key: tuple[str, ...]
    cursor: str | None
    zone: str
    rows: int
    steps: int
    changes: int
    invented: bool
    notes: tuple[str, ...]

    @property
    def label_columns(self) -> tuple[str, ...]:
        """What tells rows apart in messages: not the declared key, which may be wrong."""
        return self.table.primary_key or self.key

    def make_source(self, places: Sequence[int] | None = None) -> str:
        """A source database with the empty table and the history, or a part of it."""
        name = self.databases.make("source", template=self.name)
        with self.databases.connect(name) as connection:
            # A setting of a database is not copied with it.
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET TimeZone = {}").format(
                    sql.Identifier(name), sql.Literal(self.zone)
                )
            )
            if places is not None:
                replay.keep_places(connection, list(places))
        return name

    def step_numbers(self, source: Connection) -> list[int]:
        """The steps that have rows; the one after the last is that of the changes."""
        found = source.execute(
            sql.SQL("SELECT DISTINCT step FROM {} ORDER BY step").format(SAMPLE)
        ).fetchall()
        numbers = [step for (step,) in found]
        row: Any = source.execute(
            sql.SQL("SELECT count(*) FROM {}").format(replay.CHANGE)
        ).fetchone()
        return [*numbers, self.steps + 1] if row[0] else numbers

    def apply(self, source: Connection, step: int) -> None:
        """Let one step happen in the source."""
        with source.transaction():
            if step > self.steps:
                replay.apply_changes(source, self.table)
            else:
                replay.apply_step(source, self.table, step)

    def apply_all(self, source: Connection) -> None:
        for step in self.step_numbers(source):
            self.apply(source, step)

    def label(self, place: int) -> str:
        """A row as messages name it: `id=5`."""
        return self.labels([place])[0]

    def labels(self, places: Sequence[int]) -> list[str]:
        names = self.label_columns or self.table.column_names[:1]
        columns = sql.SQL(", ").join(
            sql.SQL("{}::text").format(column_value(self.table, name)) for name in names
        )
        with self.databases.connect(self.name) as connection:
            found = connection.execute(
                sql.SQL("SELECT {} FROM {} WHERE place = ANY (%s) ORDER BY place").format(
                    columns, SAMPLE
                ),
                (list(places),),
            ).fetchall()
        return [
            ", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))
            for row in found
        ]

    def places(self, keys: Sequence[tuple[str | None, ...]] | None = None) -> list[int]:
        """The places of all rows, or of those with one of these keys."""
        with self.databases.connect(self.name) as connection:
            columns: list[sql.Composable] = [
                sql.SQL("{}::text").format(column_value(self.table, name))
                for name in self.key
                if name in self.table.column_names
            ]
            if keys is not None and len(columns) != len(self.key):
                return []
            found = connection.execute(
                sql.SQL("SELECT place, {} FROM {} ORDER BY place").format(
                    sql.SQL(", ").join(columns or [sql.SQL("NULL")]), SAMPLE
                )
            ).fetchall()
        wanted = None if keys is None else set(keys)
        return [row[0] for row in found if wanted is None or row[1:] in wanted]

    def key_texts(self, places: Sequence[int]) -> list[str]:
        """The keys of rows as `--key` takes them."""
        if not self.key:
            return []
        columns = sql.SQL(", ").join(
            sql.SQL("{}::text").format(column_value(self.table, name)) for name in self.key
        )
        with self.databases.connect(self.name) as connection:
            found = connection.execute(
                sql.SQL(
                    "SELECT DISTINCT concat_ws(',', {}) FROM {} WHERE place = ANY (%s) ORDER BY 1"
                ).format(columns, SAMPLE),
                (list(places),),
            )
            return [text for (text,) in found]

    def late_rows(self) -> list[tuple[int, int]]:
        """Rows written after rows with a higher cursor: each with the place of one of those."""
        with self.databases.connect(self.name) as connection:
            return connection.execute(
                sql.SQL("SELECT place, after FROM {} WHERE late ORDER BY place").format(SAMPLE)
            ).fetchall()

    def shared_key(self) -> list[int]:
        """Places of rows that share one value of the key; empty when the key tells rows apart."""
        columns = sql.SQL(", ").join(column_value(self.table, name) for name in self.key)
        with self.databases.connect(self.name) as connection:
            row = connection.execute(
                sql.SQL(
                    "SELECT array_agg(place ORDER BY place) FROM {} GROUP BY {}"
                    " HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
                ).format(SAMPLE, columns)
            ).fetchone()
        return list(row[0]) if row else []


def fill_pool(
    context: Context, sync: Sync, databases: FreshDatabases, wanted: SampleSize
) -> SourceCopy:
    """Read the sample and make its history; nothing is written to the user's source."""
    if getattr(sync, "query", None):
        raise DeclarationError(
            f"sync {sync.name} reads a query, and its tables cannot be rebuilt",
            "prove a sync of a table or view; make the query a view in the source",
        )
    name = databases.make("pool")
    rule = rule_of(sync)
    with (
        context.databases.connect_source(sync.source.connection) as source,
        databases.connect(name) as copy,
    ):
        # Types are shown with their schema then, so that they mean the same elsewhere.
        source.execute("SET search_path = ''")
        # Every name and type is checked as a run would, before anything is copied.
        resolved = resolve_source(source, sync)
        if resolved.cursor is not None and resolved.cursor.type is CursorType.XID8:
            raise UsageError(
                f"sync {sync.name}: its cursor {sync.cursor} holds ids of transactions of its own "
                "server, which cannot be replayed on another",
                'prove it with changes = "snapshot" or another cursor',
            )
        table, key, cursor = resolved.table, tuple(resolved.key), sync.cursor
        zone = sync.cursor_timezone or _timezone(source)
        copy.execute("SET search_path = ''")
        with context.reading(source, resolved):
            rebuilding = Rebuilding(source, copy)
            types = rebuilding.table(table, cursor)
            make_sample_table(copy, table, types)
            rows = read_sample(source, copy, table, key, cursor, wanted)
        notes = rebuilding.notes
        invented = rows == 0 and not wanted.keys
        if invented:
            rows = invent_sample(copy, table, types)
            notes.append(f"{table.relation} is empty: {rows} rows were made up by type")
        if cursor is not None:
            future = replay.drop_future(copy, table, cursor, zone)
            rows -= future
            if future:
                notes.append(f"{future} rows with a {cursor} that is not past yet were left out")
        if rows == 0:
            raise SourceError(
                f"{table.relation} has no rows to prove with",
                "put some rows into the source, or choose others with --key",
            )
        steps = replay.arrange(copy, table, cursor, key)
        changes = 0
        if rule.replays_changes:
            changes = replay.plan_changes(copy, table, key, cursor, wanted.seed, zone)
            if not changes:
                notes.append("no updates are replayed: the cursor cannot be raised on loaded rows")
        else:
            replay.make_change_table(copy)
    return SourceCopy(
        databases, name, table, key, cursor, zone, rows, steps, changes, invented, tuple(notes)
    )


def _timezone(source: Connection) -> str:
    row = source.execute("SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'").fetchone()
    return str(row[0]) if row and row[0] else "UTC"
