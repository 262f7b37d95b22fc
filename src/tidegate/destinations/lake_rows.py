"""Staged files on their way into a lake's table: one commit, on a branch or on main."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tidegate.destinations.apply import Applied
from tidegate.destinations.lake_application import LakeApplication
from tidegate.lake import statements
from tidegate.lake.bounds import all_newer
from tidegate.lake.catalog import backticked
from tidegate.lake.files import staged_path
from tidegate.lake.metadata import read_table
from tidegate.lake.registering import register_files
from tidegate.lake.session import LakeSession
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import MAIN, UPDATE_ID, LakeTable, Snapshot
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.rules import Mode, Rules
from tidegate.model.shape import Shape

_MERGED = "spark.merge-into.num-target-rows-"
_MERGES = tuple(f"{_MERGED}{what}" for what in ("updated", "inserted", "deleted"))


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
        schema = ", ".join(f"{backticked(name)} {kind}" for name, kind in self.shape.staged)
        frame = self.session.spark.read.schema(schema).parquet(*self.paths)
        frame.createOrReplaceTempView(statements.STAGED)
        return backticked(statements.STAGED)

    def apply(
        self, table: LakeTable, branch: str | None, batch: Batch, marks: Mapping[str, str]
    ) -> Applied:
        """Put the rows in, on a branch or straight on main."""
        full = batch.kind is BatchKind.FULL
        had = self._has_rows(table, branch)
        into = statements.branch_table(self.session.catalog, self.relation, branch)
        if not self.writes and self.rules.replaces_part:
            return self._clear_part(into, branch, marks) if had else Applied(0, first=False)
        if not self.writes:
            if full and had:
                # Not by DELETE: where whole files go, Iceberg leaves the marks out of its snapshot.
                none = statements.no_rows(self.shape)
                clear = statements.insert_rows(into, none, self.shape, overwrite=True)
                self.session.run(clear)
            emptied = full and self.rules.mode is not Mode.REPLACE
            changed = table.rows(branch or MAIN) if full else 0
            return Applied(changed, first=False, emptied=emptied)
        application = LakeApplication(
            self.shape,
            self.rules,
            full=full,
            has_rows=had,
            is_plain=table.is_plain,
            is_classic=self.session.is_classic,
            on_branch=branch is not None,
        )
        if application.registers:
            self._register(branch, marks)
            return Applied(self.count, first=not had)
        self.session.run(self._statement(application, into, branch))
        after = read_table(self.session.catalog, self.relation)
        assert after is not None
        if full and branch is not None and had:
            self._check_removed(table, after, branch, marks)
        return Applied(
            _count_changed(after, branch, marks),
            first=not had,
            emptied=self.shape.deleted is not None and not self._has_rows(after, branch),
        )

    def check_removal(self, table: LakeTable, branch: str | None, batch: Batch) -> None:
        """Refuse to remove too much, as far as that is known before anything is written.

        A merge upon a branch tells how much it removed; main is looked at beforehand.
        """
        limit = self.rules.removal
        if limit is None or batch.kind is not BatchKind.FULL:
            return
        rows = table.rows(branch or MAIN)
        by_key = bool(self.shape.key) and self.rules.mode is not Mode.APPEND
        if not self.writes or not by_key:
            limit.check(self.relation, rows - self.count, rows)
        elif branch is None and limit.concerns(rows):
            into = statements.branch_table(self.session.catalog, self.relation, branch)
            question = statements.count_others(into, self.view(), self.shape)
            limit.check(self.relation, int(str(self.session.run(question)[0][0])), rows)

    def _check_removed(
        self, before: LakeTable, after: LakeTable, branch: str, marks: Mapping[str, str]
    ) -> None:
        """The same once the rows are upon a branch, and before main is moved to it."""
        rows, snapshot = before.rows(branch), _commit_of(after, branch, marks)
        removed = rows - after.rows(branch)
        if snapshot is not None and _tells_merge(snapshot):
            removed = snapshot.count(f"{_MERGED}deleted")
        if self.rules.removal is not None:
            self.rules.removal.check(self.relation, removed, rows)

    def _clear_part(self, into: str, branch: str | None, marks: Mapping[str, str]) -> Applied:
        """No row is a part as well: an empty one; not by DELETE, as above."""
        none = statements.no_rows(self.shape)
        self.session.run(statements.replace_part(into, none, self.shape, self.rules.within))
        after = read_table(self.session.catalog, self.relation)
        assert after is not None
        return Applied(_count_changed(after, branch, marks), first=False)

    def _statement(self, application: LakeApplication, into: str, branch: str | None) -> str:
        rows = self.view()
        if not application.merges or application.full:
            return application.statement(into, rows)
        if branch is not None:
            return application.statement(into, rows, all_newer=self._is_newer(branch))
        # On main, whatever others add meanwhile could be one of these rows.
        question = statements.find_bounds(rows, self.shape)
        bounds = () if question is None else self.session.run(question)[0]
        return application.statement(into, rows, bounds=bounds)

    def _is_newer(self, branch: str) -> bool:
        """Whether the cursor of every row is above all that is there."""
        cursor = self.shape.cursor
        if cursor is None or self.shape.deleted is not None:
            return False
        return all_newer(
            self.session.catalog, self.relation, branch, self.location, self.writes, cursor
        )

    def _register(self, branch: str | None, marks: Mapping[str, str]) -> None:
        self.adopt({write.write_id.partition("/")[0] for write in self.writes})
        register_files(self.session, self.relation, branch, self.paths, marks)

    def _has_rows(self, table: LakeTable, branch: str | None) -> bool:
        told = table.has_rows(branch or MAIN)
        if told is not None:
            return told
        into = statements.branch_table(self.session.catalog, self.relation, branch)
        return bool(self.session.run(statements.find_row(into)))


def _count_changed(table: LakeTable, branch: str | None, marks: Mapping[str, str]) -> int:
    """How many rows the commit of this load touched, as its summary says."""
    snapshot = _commit_of(table, branch, marks)
    if snapshot is None:
        return 0
    if not _tells_merge(snapshot):
        # Spark writes a merge that can only insert as an insert.
        return snapshot.count("added-records")
    return sum(map(snapshot.count, _MERGES))


def _commit_of(table: LakeTable, branch: str | None, marks: Mapping[str, str]) -> Snapshot | None:
    mine = (one for one in table.ancestors(branch or MAIN) if one.update_id == marks[UPDATE_ID])
    return next(mine, None)


def _tells_merge(snapshot: Snapshot) -> bool:
    return any(name in snapshot.summary for name in _MERGES)
