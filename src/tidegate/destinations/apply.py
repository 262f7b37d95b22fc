"""What each mode does with the rows of a load, inside the publish transaction."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidegate.destinations import append, deletes, merge
from tidegate.destinations.late import LateRows
from tidegate.destinations.target import physical_table
from tidegate.model.lateness import Late
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode, Rules
from tidegate.model.shape import Shape
from tidegate.postgres.catalog import is_empty
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified


@dataclass(frozen=True, slots=True)
class Applied:
    """How many rows of the target changed; `first` when it had none before."""

    changed: int
    first: bool
    emptied: bool = False
    """it has none after a batch that carried deletes, or that was all and nothing"""
    late: Late | None = None
    """rows that came after the watermark had passed them"""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement; `counts` if the rows it touches are changes, not rows that come back."""

    statement: sql.Composed
    counts: bool = True
    tells_changes: bool = False
    """it leaves alone what is there already"""


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
        return physical_table(self.relation, self.shape, self.rules)

    def apply(self, connection: Connection) -> Applied:
        first = is_empty(connection, qualified(self.table))
        changed = 0
        late: Late | None = None
        for step in self.steps(first=first):
            if step.tells_changes and self.late_rows is not None:
                rows, late = self.late_rows.execute(connection, step.statement)
            else:
                rows = connection.execute(step.statement).rowcount
            changed += rows if step.counts else 0
        if self.rows is None:
            # A source that was truncated; what is replaced each time may come back at any time.
            emptied = self.full and self.rules.mode is not Mode.REPLACE
            return Applied(changed, first=False, emptied=emptied)
        emptied = self.shape.deleted is not None and is_empty(connection, qualified(self.table))
        return Applied(changed, first=first, emptied=emptied, late=late)

    def steps(self, *, first: bool) -> list[Step]:
        """The statements, in order, for a target that has rows or is at its first."""
        shape, rows = self.shape, self.rows
        if self.rules.replaces_part:
            return self._replace_part(first=first)
        if rows is None:
            return [self._clear(counts=True)] if self.full and not first else []
        kept = deletes.kept_rows(rows, shape)
        insert = Step(merge.insert_statement(self.table, kept, shape))
        if self.rules.mode is Mode.APPEND:
            put = insert
            if shape.key:
                put = Step(
                    append.append_statement(self.table, rows, shape, self.update_id),
                    tells_changes=True,
                )
            return [self._clear(), put] if self.full and not first else [put]
        if first:
            return [insert]
        if not shape.key:
            return [self._clear(), insert]
        gone: list[Step] = []
        if self.full:
            gone.append(Step(merge.delete_others_statement(self.table, rows, shape)))
        if shape.deleted is not None:
            keys = deletes.gone_keys(rows, shape)
            gone.append(Step(merge.delete_same_statement(self.table, keys, shape)))
        if self.rules.mode is Mode.DELETE_INSERT:
            same = Step(merge.delete_same_statement(self.table, kept, shape), counts=False)
            return [*gone, same, insert]
        newest_wins = self.rules.newest_wins and not self.full
        upsert = merge.merge_statement(self.table, kept, shape, newest_wins=newest_wins)
        return [*gone, Step(upsert, tells_changes=True)]

    def _replace_part(self, *, first: bool) -> list[Step]:
        """The part is emptied, also where no row comes in its place."""
        gone = merge.delete_part_statement(self.table, self.rules.within)
        steps = [] if first else [Step(gone, counts=self.rows is None)]
        if self.rows is not None:
            steps.append(Step(merge.insert_statement(self.table, self.rows, self.shape)))
        return steps

    def _clear(self, *, counts: bool = False) -> Step:
        return Step(sql.SQL("DELETE FROM {}").format(qualified(self.table)), counts=counts)
