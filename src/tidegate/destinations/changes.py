"""The changes that a target may need: what each says in ALTER TABLE, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg import sql

from tidegate.model.column import Column, Table
from tidegate.model.relation import Relation
from tidegate.postgres.identifiers import qualified


@dataclass(frozen=True, slots=True)
class Added:
    """A column more; without NOT NULL, since the rows that are there have no value for it."""

    name: str
    type: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(
            sql.Identifier(self.name), sql.SQL(self.type)
        )

    def applied_to(self, table: Table) -> Table:
        column = Column(self.name, self.type, self.type, via_text=False, not_null=False)
        return replace(table, columns=(*table.columns, column))


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column of a wider type."""

    name: str
    type: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ALTER COLUMN {} TYPE {}").format(
            sql.Identifier(self.name), sql.SQL(self.type)
        )

    def applied_to(self, table: Table) -> Table:
        return _with(table, self.name, type=self.type)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A column that may be NULL from now on."""

    name: str

    @property
    def action(self) -> sql.Composed:
        return sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(self.name))

    def applied_to(self, table: Table) -> Table:
        return _with(table, self.name, not_null=False)


Change = Added | Retyped | Relaxed


def alter(relation: Relation, *actions: sql.Composable) -> sql.Composed:
    """One ALTER TABLE, so that rows are written anew once at most."""
    return sql.SQL("ALTER TABLE {} {}").format(qualified(relation), sql.SQL(", ").join(actions))


def _with(table: Table, name: str, **values: object) -> Table:
    return replace(
        table,
        columns=tuple(
            replace(column, **values) if column.name == name else column  # type: ignore[arg-type]
            for column in table.columns
        ),
    )
