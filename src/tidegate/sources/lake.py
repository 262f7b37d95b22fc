"""An Iceberg table as a source: its snapshots order it, and what lies between two is a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import DeclarationError, SnapshotGone, SourceError
from tidegate.lake import changes
from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import read_table
from tidegate.lake.session import LakeSession
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import Field, LakeTable, Snapshot
from tidegate.model.rules import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ADDED = "added-records"
_DELETES = "total-delete-files"


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows of a batch, and the keys that are gone; None where nothing can have gone."""

    rows: DataFrame
    gone: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class LakeSource:
    """One table of a lake as a sync reads it; `table` is what was known when it was resolved."""

    catalog: Catalog
    table: LakeTable
    columns: tuple[Field, ...]
    key: tuple[str, ...]
    mode: Mode
    batch_rows: int
    sync_name: str

    @property
    def identity(self) -> str:
        """What stays the same while it is the same table, whatever its name."""
        return f"{self.catalog.identity}/{self.table.relation}/{self.table.uuid}"

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.table.fields)

    def read(self) -> LakeTable:
        """The table as it is now; refuses another one under the same name."""
        table = read_table(self.catalog, self.table.relation)
        if table is None or table.uuid != self.table.uuid:
            raise SourceError(
                f"sync {self.sync_name}: {self._name} was dropped while it was being read",
                "run again",
            )
        return table

    def waiting(self, table: LakeTable, value: str) -> list[Snapshot]:
        """What the table has gone through since the snapshot that was loaded last."""
        found = table.since(int(value)) if value.isdigit() else None
        if found is not None:
            return found
        if value.isdigit() and int(value) in table.snapshots:
            what = (
                f"{self._name} was rolled back: the snapshot {value}, which was loaded last, is "
                "no longer part of main"
            )
        else:
            what = (
                f"{self._name} no longer knows the snapshot {value}, which was loaded last: it "
                "has expired"
            )
        raise SnapshotGone(
            f"sync {self.sync_name}: {what}, so what changed since cannot be told",
            "to load everything again, and remove what is gone: tidegate run "
            f"{self.sync_name} --full-refresh",
        )

    def next_batch(self, table: LakeTable, value: str | None) -> Batch | None:
        """What to load next; a long chain of snapshots is cut where it has rows enough."""
        if table.main is None or value == str(table.main):
            return None
        if value is None:
            return self.whole_batch(table, BatchKind.SNAPSHOTS)
        waiting = self.waiting(table, value)
        taken = take(waiting, self.batch_rows)
        if self.mode is Mode.APPEND:
            self._refuse_changes(taken)
        return Batch(
            BatchKind.SNAPSHOTS,
            value,
            str(taken[-1].snapshot_id),
            rows=added(taken),
            is_last=len(taken) == len(waiting),
        )

    def waiting_rows(self, table: LakeTable, value: str | None) -> int:
        """About how many rows are not loaded yet."""
        if value == (None if table.main is None else str(table.main)):
            return 0
        if value is None or self.mode is Mode.REPLACE:
            return table.rows()
        return added(self.waiting(table, value))

    def whole_batch(self, table: LakeTable, kind: BatchKind) -> Batch:
        """Everything that main holds now."""
        high = None if table.main is None else str(table.main)
        return Batch(kind, None, high, rows=table.rows(), is_last=True)

    def is_there(self, table: LakeTable, batch: Batch) -> bool:
        """Whether a batch that was planned before can still be read."""
        kept = {snapshot.snapshot_id for snapshot in table.ancestors()}
        return all(int(one) in kept for one in (batch.low, batch.high) if one is not None)

    def changes(self, session: LakeSession, table: LakeTable, batch: Batch) -> Changes:
        """The rows of a batch, each key once as it is at the end of it."""
        high = None if batch.high is None else int(batch.high)
        if batch.low is None or high is None:
            return Changes(session.read(changes.rows_at(session, table, self.columns, high)))
        low = int(batch.low)
        passed = self.passed(table, batch)
        if all(snapshot.adds_only for snapshot in passed):
            return Changes(changes.added_rows(session, table, self.columns, low, high))
        ends = [table.snapshots[low], *passed]
        if any(snapshot.count(_DELETES) for snapshot in ends):
            # Iceberg's changelog does not know files of deletes, so both ends are compared.
            old = changes.rows_at(session, table, self.columns, low)
            new = changes.rows_at(session, table, self.columns, high)
            rows = changes.changed_rows(old, new, self.columns, self.key)
        else:
            changes.open_changelog(session, table.relation, low, high)
            names = [one.name for one in self.columns]
            old = changes.changelog_rows(self.key, "DELETE")
            new = rows = changes.changelog_rows(names, "INSERT")
        gone = changes.gone_keys(old, new, self.key)
        return Changes(session.read(rows), session.read(gone))

    def passed(self, table: LakeTable, batch: Batch) -> list[Snapshot]:
        """The snapshots of a batch."""
        assert batch.low is not None
        assert batch.high is not None
        found = self.waiting(table, batch.low)
        ids = [snapshot.snapshot_id for snapshot in found]
        return found[: ids.index(int(batch.high)) + 1]

    @property
    def _name(self) -> str:
        return f"{self.catalog.name}:{self.table.relation}"

    def _refuse_changes(self, snapshots: Sequence[Snapshot]) -> None:
        other = next((one for one in snapshots if not one.adds_only), None)
        if other is not None:
            raise DeclarationError(
                f"sync {self.sync_name}: the snapshot {other.snapshot_id} of {self._name} "
                f"({other.operation}) removed or changed rows, and mode append only adds",
                'declare a key and use mode = "merge", or load everything again: tidegate run '
                f"{self.sync_name} --full-refresh",
            )


def added(snapshots: Sequence[Snapshot]) -> int:
    """About how many rows they brought; what a compaction wrote again is not new."""
    return sum(one.count(_ADDED) for one in snapshots if not one.changes_nothing)


def take(waiting: Sequence[Snapshot], limit: int) -> list[Snapshot]:
    """The first snapshots that together bring no more rows than the limit, one at the least."""
    taken: list[Snapshot] = []
    rows = 0
    for snapshot in waiting:
        more = added([snapshot])
        if rows and rows + more > limit:
            break
        taken.append(snapshot)
        rows += more
    return taken
