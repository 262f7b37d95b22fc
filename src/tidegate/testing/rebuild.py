"""A source table built again elsewhere, from what the catalog says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tidegate.model.column import RelationKind, Table
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import FIRST_USER_OID
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, qualified

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
