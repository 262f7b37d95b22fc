"""The rows of a lake's table at one snapshot, read without Spark, a few of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import BusyError, StagingLost
from tidegate.lake.catalog import Catalog
from tidegate.lake.data_file import file_batches
from tidegate.lake.files import staged_path
from tidegate.lake.metadata import file_io
from tidegate.model.lake import LakeTable
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class LakeRowsAt:
    """A table's rows as one snapshot has them, whatever is committed meanwhile."""

    catalog: Catalog
    relation: Relation
    metadata: TableMetadata
    snapshot_id: int | None
    """None where nothing was ever committed"""

    def batches(
        self, names: Sequence[str], equal: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(data file, rows of it) with these columns; only rows that have the values of `equal`."""
        if self.snapshot_id is None:
            return
        from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
        from pyiceberg.table import DataScan

        wanted: BooleanExpression = AlwaysTrue()
        equal_to: Any = EqualTo
        for name, value in (equal or {}).items():
            wanted = And(wanted, equal_to(name, value))
        io = file_io(self.catalog, self.metadata.location)
        # Columns that came after the snapshot are read as well: they are NULL in it.
        schema = self.metadata.schema().select(*names)
        try:
            scan = DataScan(self.metadata, io, wanted, snapshot_id=self.snapshot_id)
            for task in scan.plan_files():
                for batch in file_batches(self.metadata, io, task, schema, wanted):
                    yield task.file.file_path, batch
        except FileNotFoundError as error:
            raise BusyError(
                f"files of {self.relation} were removed while they were being read: its snapshot "
                f"{self.snapshot_id} has expired",
                "try again",
            ) from error

    def added_in(self, path: str) -> int | None:
        """The snapshot that brought a data file."""
        snapshot = None
        if self.snapshot_id is not None:
            snapshot = self.metadata.snapshot_by_id(self.snapshot_id)
        if snapshot is None:
            return None
        io = file_io(self.catalog, self.metadata.location)
        for manifest in snapshot.manifests(io):
            for entry in manifest.fetch_manifest_entry(io):
                if entry.data_file.file_path == path:
                    return entry.snapshot_id
        return None


def staged_batches(
    catalog: Catalog, table: LakeTable, writes: Sequence[StagedWrite]
) -> Iterator[pa.RecordBatch]:
    """The rows of staged files, if they are all still there."""
    import pyarrow.parquet as pq

    io = file_io(catalog, table.location)
    for write in writes:
        rows = 0
        try:
            with io.new_input(staged_path(table.location, write.write_id)).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches():
                    rows += batch.num_rows
                    yield batch
        except FileNotFoundError:
            rows = -1
        if rows != write.rows:
            raise StagingLost(f"rows staged for {table.relation} are gone")
