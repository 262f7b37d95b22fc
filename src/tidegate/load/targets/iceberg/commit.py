"""One commit of staged files, by mode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.config.sync import Rules
from tidegate.core.batch import Batch, BatchKind, StagedWrite
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.iceberg import statements
from tidegate.iceberg.catalog import Catalog, backticked
from tidegate.iceberg.metadata import file_io, open_table, read_table
from tidegate.iceberg.session import IcebergSession, register_files
from tidegate.iceberg.staged_files import staged_path
from tidegate.iceberg.table import MAIN, UPDATE_ID, IcebergTable, Snapshot
from tidegate.load.modes import MODES, LoadMode
from tidegate.load.targets.iceberg.statement import IcebergStatement, Narrowing
from tidegate.load.targets.postgres.apply import AppliedRows


@dataclass(frozen=True, slots=True)
class LakeApplication:
    """Staged rows on their way into one table."""

    shape: Shape
    rules: Rules
    full: bool
    """everything else leaves the table"""
    has_rows: bool
    is_plain: bool
    """any file may be added to the table"""
    is_classic: bool
    """Iceberg's own interface is at hand, as opposed to Spark Connect"""
    on_branch: bool = True
    """nobody else writes there; on main others may add rows at any moment"""

    @property
    def registers(self) -> bool:
        """Whether the files become the table's own as they are."""
        is_whole = not self._mode.folds(self.shape, self.rules) and self.shape.deleted is None
        return self._only_adds and is_whole and self.is_plain and self.is_classic

    def statement(self, into: str, rows: str, narrow: Callable[[], Narrowing] = Narrowing) -> str:
        """What puts the rows in, where their files are not registered."""
        if self._mode.folds(self.shape, self.rules):
            rows = statements.newest_rows(rows, self.shape)
        found = IcebergStatement(into, rows, self.shape, self.rules, self.full, narrow)
        return found.insert() if self._only_adds else self._mode.iceberg(found)

    @property
    def _mode(self) -> LoadMode:
        return MODES[self.rules.mode]

    @property
    def _only_adds(self) -> bool:
        adds = self._mode.only_adds and not self.full
        return adds or (self.on_branch and not self.has_rows)


# Their bounds are exact, where those of texts are cut off, and whole numbers in any file.
_EXACT = frozenset({"int", "long", "date", "timestamp", "timestamptz"})
# With more files than these, looking at each costs more than it saves.
_MOST_FILES = 10_000


def all_newer(
    catalog: Catalog,
    relation: Relation,
    branch: str,
    location: str,
    writes: Sequence[StagedWrite],
    column: str,
) -> bool:
    """Whether every staged row is above every row of a branch by this column, for certain."""
    table = open_table(catalog, relation)
    if table is None:
        return False
    field = next((one for one in table.schema().fields if one.name == column), None)
    if field is None or str(field.field_type) not in _EXACT:
        return False
    least = _least(file_io(catalog, location), location, writes, column)
    if least is None:
        return False
    snapshot = table.metadata.snapshot_by_name(branch)
    if snapshot is None or snapshot.summary is None:
        return False
    if int(snapshot.summary["total-data-files"] or 0) > _MOST_FILES:
        return False
    return all(
        _is_below(entry.data_file, field, least)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == 0
    )


def _least(io: Any, location: str, writes: Sequence[StagedWrite], column: str) -> int | None:
    """The least staged value; None where a row has none or it is not told."""
    import pyarrow.parquet as pq

    least: int | None = None
    for write in writes:
        with io.new_input(staged_path(location, write.write_id)).open() as stream:
            metadata = pq.read_metadata(stream)
        index = metadata.schema.to_arrow_schema().get_field_index(column)
        for group in range(metadata.num_row_groups):
            told = metadata.row_group(group).column(index).statistics
            if told is None or not told.has_min_max or told.null_count != 0:
                return None
            least = told.min_raw if least is None else min(least, told.min_raw)
    return least


def _is_below(file: Any, field: Any, least: int) -> bool:
    from pyiceberg.conversions import from_bytes

    nulls = (file.null_value_counts or {}).get(field.field_id, 0)
    if nulls == file.record_count:
        return True
    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is None:
        return False
    highest: Any = from_bytes(field.field_type, bound)
    return bool(highest < least)


_MERGED = "spark.merge-into.num-target-rows-"
_MERGES = tuple(f"{_MERGED}{what}" for what in ("updated", "inserted", "deleted"))


@dataclass(frozen=True, slots=True)
class IcebergCommit:
    """The staged rows of one load."""

    session: IcebergSession
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
        self, table: IcebergTable, branch: str | None, batch: Batch, marks: Mapping[str, str]
    ) -> AppliedRows:
        """Put the rows in, on a branch or straight on main."""
        full = batch.kind is BatchKind.FULL
        had = self._has_rows(table, branch)
        into = statements.branch_table(self.session.catalog, self.relation, branch)
        if not self.writes and self.rules.replaces_part:
            return self._clear_part(into, branch, marks) if had else AppliedRows(0, first=False)
        if not self.writes:
            if full and had:
                # Not by DELETE: where whole files go, Iceberg leaves the marks out of its snapshot.
                none = statements.no_rows(self.shape)
                clear = statements.insert_rows(into, none, self.shape, overwrite=True)
                self.session.run(clear)
            emptied = full and not MODES[self.rules.mode].loads_whole
            changed = table.rows(branch or MAIN) if full else 0
            return AppliedRows(changed, first=False, emptied=emptied)
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
            return AppliedRows(self.count, first=not had)
        rows = self.view()
        self.session.run(application.statement(into, rows, lambda: self._narrow(rows, branch)))
        after = read_table(self.session.catalog, self.relation)
        assert after is not None
        if full and branch is not None and had:
            self._check_removed(table, after, branch, marks)
        return AppliedRows(
            _count_changed(after, branch, marks),
            first=not had,
            emptied=self.shape.deleted is not None and not self._has_rows(after, branch),
        )

    def check_removal(self, table: IcebergTable, branch: str | None, batch: Batch) -> None:
        """Refuse to remove too much, as far as that is known before anything is written.

        A merge upon a branch tells how much it removed; main is looked at beforehand.
        """
        limit = self.rules.removal
        if limit is None or batch.kind is not BatchKind.FULL:
            return
        rows = table.rows(branch or MAIN)
        by_key = bool(self.shape.key) and not MODES[self.rules.mode].only_adds
        if not self.writes or not by_key:
            limit.check(self.relation, rows - self.count, rows)
        elif branch is None and limit.concerns(rows):
            into = statements.branch_table(self.session.catalog, self.relation, branch)
            question = statements.count_others(into, self.view(), self.shape)
            limit.check(self.relation, int(str(self.session.run(question)[0][0])), rows)

    def _check_removed(
        self, before: IcebergTable, after: IcebergTable, branch: str, marks: Mapping[str, str]
    ) -> None:
        """The same once the rows are upon a branch, and before main is moved to it."""
        rows, snapshot = before.rows(branch), _commit_of(after, branch, marks)
        removed = rows - after.rows(branch)
        if snapshot is not None and _tells_merge(snapshot):
            removed = snapshot.count(f"{_MERGED}deleted")
        if self.rules.removal is not None:
            self.rules.removal.check(self.relation, removed, rows)

    def _clear_part(self, into: str, branch: str | None, marks: Mapping[str, str]) -> AppliedRows:
        """No row is a part as well: an empty one; not by DELETE, as above."""
        none = statements.no_rows(self.shape)
        self.session.run(statements.replace_part(into, none, self.shape, self.rules.within))
        after = read_table(self.session.catalog, self.relation)
        assert after is not None
        return AppliedRows(_count_changed(after, branch, marks), first=False)

    def _narrow(self, rows: str, branch: str | None) -> Narrowing:
        if branch is not None:
            return Narrowing(all_newer=self._is_newer(branch))
        # On main, whatever others add meanwhile could be one of these rows.
        question = statements.find_bounds(rows, self.shape)
        return Narrowing(() if question is None else self.session.run(question)[0])

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

    def _has_rows(self, table: IcebergTable, branch: str | None) -> bool:
        told = table.has_rows(branch or MAIN)
        if told is not None:
            return told
        into = statements.branch_table(self.session.catalog, self.relation, branch)
        return bool(self.session.run(statements.find_row(into)))


def _count_changed(table: IcebergTable, branch: str | None, marks: Mapping[str, str]) -> int:
    """How many rows the commit of this load touched, as its summary says."""
    snapshot = _commit_of(table, branch, marks)
    if snapshot is None:
        return 0
    if not _tells_merge(snapshot):
        # Spark writes a merge that can only insert as an insert.
        return snapshot.count("added-records")
    return sum(map(snapshot.count, _MERGES))


def _commit_of(
    table: IcebergTable, branch: str | None, marks: Mapping[str, str]
) -> Snapshot | None:
    mine = (one for one in table.ancestors(branch or MAIN) if one.update_id == marks[UPDATE_ID])
    return next(mine, None)


def _tells_merge(snapshot: Snapshot) -> bool:
    return any(name in snapshot.summary for name in _MERGES)
