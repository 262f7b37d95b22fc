"""Staged rows become rows of the target, inside the publish transaction."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.config.sync import Rules
from tidegate.core.batch import Late
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.core.watermark import CursorType
from tidegate.load.modes import MODES, LoadMode, TableForm
from tidegate.load.targets.postgres import drift, statements
from tidegate.load.targets.postgres.steps import ApplyStep, PostgresSteps
from tidegate.postgres.catalog import is_empty
from tidegate.postgres.connection import Connection, own_path
from tidegate.postgres.queries import column_list, qualified


@dataclass(frozen=True, slots=True)
class LateRows:
    """What rows at or below a watermark are measured by."""

    cursor: str
    type: CursorType
    watermark: str

    def execute(self, connection: Connection, statement: sql.Composed) -> tuple[int, Late | None]:
        """Run a statement that inserts or updates rows; how many, and how late they were."""
        row = connection.execute(
            sql.SQL(
                "WITH changed AS ({statement} RETURNING {cursor} AS c),"
                " late AS (SELECT ({distance})::float8 AS d FROM changed)"
                " SELECT count(*), pg_catalog.count(d),"
                " pg_catalog.percentile_disc(0.5::float8) WITHIN GROUP (ORDER BY d),"
                " pg_catalog.max(d)"
                " FROM late"
            ).format(
                statement=statement, cursor=sql.Identifier(self.cursor), distance=self._distance
            )
        ).fetchone()
        assert row is not None
        changed, late, half_within, farthest = row
        return changed, Late(late, half_within, farthest) if late else None

    @property
    def _distance(self) -> sql.Composed:
        typed = sql.SQL(self.type.value)
        if self.type.is_number:
            return sql.SQL("{}::numeric - c::text::numeric").format(sql.Literal(self.watermark))
        if self.type is CursorType.DATE:
            return sql.SQL("({}::date - c::date) * 86400").format(sql.Literal(self.watermark))
        return sql.SQL("extract(epoch FROM {}::{t} - c::{t})").format(
            sql.Literal(self.watermark), t=typed
        )


@dataclass(frozen=True, slots=True)
class AppliedRows:
    """How many rows of the target changed; `first` when it had none before."""

    changed: int
    first: bool
    emptied: bool = False
    """it has none after a batch that carried deletes, or that was all and nothing"""
    late: Late | None = None
    """rows that came after the watermark had passed them"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Application:
    """Rows on their way into one table; `rows` is None when the batch has none."""

    relation: Relation
    rows: sql.Composable | None
    shape: Shape
    rules: Rules
    update_id: str
    full: bool
    """everything else leaves the target"""
    late_rows: LateRows | None = None
    """of a batch that reads again what lies below the watermark"""

    @property
    def table(self) -> Relation:
        """Where the rows lie."""
        return self._form.place(self.relation)

    def apply(self, connection: Connection) -> AppliedRows:
        first = is_empty(connection, qualified(self.table))
        changed = cleared = put = 0
        late: Late | None = None
        notes: tuple[str, ...] = ()
        triggers = [] if self.rows is None else drift.row_triggers(connection, self.table)
        for step in self.steps(first=first):
            if step.clears:
                self._check_versions(connection)
            counted = step.puts is not None and bool(triggers)
            expected = _count(connection, step.puts) if counted else 0
            # Triggers of the target may name things without a schema; these statements do not.
            with own_path(connection):
                if step.tells_changes and self.late_rows is not None:
                    rows, late = self.late_rows.execute(connection, step.statement)
                else:
                    rows = connection.execute(step.statement).rowcount
            if step.removes:
                self._check_removal(connection, rows)
            if counted and rows < expected:
                notes = (_swallowed(self.table, triggers, expected - rows, expected),)
            cleared += rows if step.clears else 0
            put += 0 if step.puts is None else rows
            changed += rows if step.counts else 0
        if self.rules.removal is not None and cleared and not self._form.holds_versions:
            self.rules.removal.check(self.relation, cleared - put, cleared)
        if self.rows is None:
            # A source that was truncated; what is replaced each time may come back at any time.
            emptied = self.full and not self._mode.loads_whole
            return AppliedRows(changed, first=False, emptied=emptied)
        emptied = self.shape.deleted is not None and is_empty(connection, qualified(self.table))
        return AppliedRows(changed, first=first, emptied=emptied, late=late, notes=notes)

    @property
    def _mode(self) -> LoadMode:
        return MODES[self.rules.mode]

    @property
    def _form(self) -> TableForm:
        return self._mode.table(self.shape.key)

    def _check_removal(self, connection: Connection, removed: int) -> None:
        """Refuse what was just deleted, where it was too much of the target."""
        limit = self.rules.removal
        if limit is not None and limit.concerns(removed):
            left = _count(connection, qualified(self.table))
            limit.check(self.relation, removed, removed + left)

    def _check_versions(self, connection: Connection) -> None:
        """Of versions that all go to come anew, it is the keys that count."""
        limit = self.rules.removal
        if limit is None or not self._form.holds_versions:
            return
        keys = sql.SQL("(SELECT DISTINCT {} FROM {}) t").format(
            column_list(self.shape.key), qualified(self.table)
        )
        gone = keys
        if self.rows is not None:
            gone += sql.SQL(" WHERE ") + statements.is_missing("t", self.rows, self.shape)
        removed = _count(connection, gone)
        if limit.concerns(removed):
            limit.check(self.relation, removed, _count(connection, keys))

    def steps(self, *, first: bool) -> list[ApplyStep]:
        """The statements, in order, for a target that has rows or is at its first."""
        steps = PostgresSteps(
            self.table, self.rows, self.shape, self.rules, self.update_id, self.full, first
        )
        if self.rows is None and not self.rules.replaces_part:
            return [steps.clear(counts=True)] if self.full and not first else []
        return self._mode.postgres(steps)


def _count(connection: Connection, source: sql.Composable | None) -> int:
    assert source is not None
    row = connection.execute(statements.count_statement(source)).fetchone()
    assert row is not None
    return int(row[0])


def _swallowed(table: Relation, triggers: list[str], missing: int, expected: int) -> str:
    return (
        f"{missing:,} of {expected:,} rows were not taken by {table}: a trigger of it "
        f"({', '.join(triggers)}) kept them out, or put them elsewhere; tidegate verify tells "
        "which are missing"
    )
