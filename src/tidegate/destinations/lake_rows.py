"""Staged files on their way into a lake's table: one commit, on a branch or on main."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tidegate.lake import statements
from tidegate.lake.catalog import backticked
from tidegate.lake.files import staged_path
from tidegate.lake.metadata import read_table
from tidegate.lake.registering import register_files
from tidegate.lake.session import LakeSession
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import MAIN, LakeTable
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Duplicates, Mode, Rules
from tidegate.model.shape import Shape

_MERGED = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True, slots=True)
class LakeRows:
    """The staged rows of one load."""

    session: LakeSession
    relation: Relation
    shape: Shape
    rules: Rules
    location: str
    writes: tuple[StagedWrite, ...]
    adopt: Callable[[Collection[str]], None] = lambda _: None
    """is told of folders whose files become the table's own, before they do"""

    @property
    def paths(self) -> list[str]:
        return [staged_path(self.location, write.write_id) for write in self.writes]

    @property
    def count(self) -> int:
        return sum(write.rows for write in self.writes)

    def view(self) -> str:
        """The name under which this session's statements find the rows."""
        schema = ", ".join(
            f"{backticked(column.name)} {column.staged_type}" for column in self.shape.columns
        )
        frame = self.session.spark.read.schema(schema).parquet(*self.paths)
        frame.createOrReplaceTempView(statements.STAGED)
        return backticked(statements.STAGED)

    def apply(
        self, table: LakeTable, branch: str | None, batch: Batch, marks: Mapping[str, str]
    ) -> int:
        """Put the rows in; returns how many rows of the table changed."""
        full = batch.kind is BatchKind.FULL
        before = table.rows(branch or MAIN)
        into = statements.branch_table(self.session.catalog, self.relation, branch)
        if not self.writes:
            if full and before:
                self.session.run(statements.clear_rows(into))
            return before if full else 0
        shape, mode = self.shape, self.rules.mode
        newest = self.rules.duplicates is Duplicates.NEWEST and mode is not Mode.APPEND
        folds = newest and bool(shape.key) and not shape.key_is_unique
        only_adds = not before or (mode is Mode.APPEND and not full)
        if only_adds and not folds and table.is_plain and self.session.is_classic:
            self._register(branch, marks)
            return self.count
        rows = self.view()
        if folds:
            rows = statements.newest_rows(rows, shape)
        if only_adds or not shape.key or mode is Mode.APPEND:
            overwrite = bool(before) and not only_adds
            self.session.run(statements.insert_rows(into, rows, shape, overwrite=overwrite))
            return self.count if not folds else self._added(branch)
        newest_wins = mode is Mode.MERGE and not full
        self.session.run(
            statements.merge_rows(into, rows, shape, newest_wins=newest_wins, full=full)
        )
        return self._changed(branch)

    def _register(self, branch: str | None, marks: Mapping[str, str]) -> None:
        self.adopt({write.write_id.partition("/")[0] for write in self.writes})
        register_files(self.session, self.relation, branch, self.paths, marks)

    def _changed(self, branch: str | None) -> int:
        table = read_table(self.session.catalog, self.relation)
        assert table is not None
        snapshot = next(iter(table.ancestors(branch or MAIN)))
        return sum(
            snapshot.count(f"{_MERGED}{what}") for what in ("updated", "inserted", "deleted")
        )

    def _added(self, branch: str | None) -> int:
        table = read_table(self.session.catalog, self.relation)
        assert table is not None
        return next(iter(table.ancestors(branch or MAIN))).count("added-records")
