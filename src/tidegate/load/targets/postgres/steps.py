"""What a mode can do with staged rows in Postgres: steps of the publish transaction."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.config.sync import Rules
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.load.targets.postgres import statements
from tidegate.postgres.queries import qualified


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """One statement; `counts` if the rows it touches are changes, not rows that come back."""

    statement: sql.Composed
    counts: bool = True
    tells_changes: bool = False
    """it leaves alone what is there already"""
    removes: bool = False
    """the rows it touches are in the target no more"""
    clears: bool = False
    """it empties the target for what comes next, if anything does"""
    puts: sql.Composable | None = None
    """what follows FROM in a question for the rows that it puts in"""


@dataclass(frozen=True, slots=True)
class PostgresSteps:
    """Staged rows on their way into a table, and the steps to choose from."""

    table: Relation
    """where the rows lie"""
    rows: sql.Composable | None
    """None where the batch has none"""
    shape: Shape
    rules: Rules
    update_id: str
    full: bool
    """everything else leaves the target"""
    first: bool
    """the table has no row yet"""

    def insert(self) -> ApplyStep:
        kept = self._kept
        statement = statements.insert_statement(self.table, kept, self.shape)
        return ApplyStep(statement, puts=_these(kept))

    def upsert(self) -> ApplyStep:
        """Insert, or update what has the same key and is not newer."""
        table, kept, shape = self.table, self._kept, self.shape
        newest_wins = self.rules.newest_wins and not self.full
        upsert = statements.merge_statement(table, kept, shape, newest_wins=newest_wins)
        changing = statements.changing_rows(table, kept, shape, newest_wins=newest_wins)
        return ApplyStep(upsert, tells_changes=True, puts=_these(changing))

    def clear(self, *, counts: bool = False) -> ApplyStep:
        statement = sql.SQL("DELETE FROM {}").format(qualified(self.table))
        return ApplyStep(statement, counts=counts, clears=True)

    def clear_part(self) -> ApplyStep:
        """Empty the part that the rows replace."""
        gone = statements.delete_part_statement(self.table, self.rules.within, self.shape)
        return ApplyStep(gone, counts=self.rows is None)

    def remove_gone(self) -> list[ApplyStep]:
        """Remove what a full batch does not hold, and rows that are said to be deleted."""
        gone: list[ApplyStep] = []
        if self.full:
            others = statements.delete_others_statement(self.table, self._staged, self.shape)
            gone.append(ApplyStep(others, removes=True))
        if self.shape.deleted is not None:
            keys = statements.gone_keys(self._staged, self.shape)
            gone.append(ApplyStep(statements.delete_same_statement(self.table, keys, self.shape)))
        return gone

    def remove_same(self) -> ApplyStep:
        """Remove the rows whose keys come again."""
        same = statements.delete_same_statement(self.table, self._kept, self.shape)
        return ApplyStep(same, counts=False)

    @property
    def _staged(self) -> sql.Composable:
        assert self.rows is not None
        return self.rows

    @property
    def _kept(self) -> sql.Composable:
        return statements.kept_rows(self._staged, self.shape)


def _these(rows: sql.Composable) -> sql.Composed:
    return sql.SQL("({}) these").format(rows)
