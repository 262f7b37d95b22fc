"""The rows of a lake's table at one snapshot, read without Spark, a few of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import BusyError, DestinationError, StagingLost
from tidegate.lake.catalog import Catalog
from tidegate.lake.data_file import file_batches
from tidegate.lake.files import staged_path
from tidegate.lake.metadata import file_io, read_metadata
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
        with _reading(self.catalog, self.relation):
            scan = DataScan(self.metadata, io, wanted, snapshot_id=self.snapshot_id)
            for task in scan.plan_files():
                for batch in file_batches(self.metadata, io, task, schema, wanted):
                    yield task.file.file_path, batch

    def count(self) -> int:
        """How many there are; files are read only where rows were deleted from them."""
        if self.snapshot_id is None:
            return 0
        from pyiceberg.table import DataScan

        io = file_io(self.catalog, self.metadata.location)
        with _reading(self.catalog, self.relation):
            found: int = DataScan(self.metadata, io, snapshot_id=self.snapshot_id).count()
            return found

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


def main_rows(catalog: Catalog, relation: Relation) -> LakeRowsAt | None:
    """The rows of a table as it is now; None when there is none."""
    metadata = read_metadata(catalog, relation)
    if metadata is None:
        return None
    return LakeRowsAt(catalog, relation, metadata, metadata.current_snapshot_id)


@contextmanager
def _reading(catalog: Catalog, relation: Relation) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise BusyError(
            f"files of {relation} were removed while they were being read: its snapshot has "
            "expired",
            "try again",
        ) from error
    except (OSError, ValueError) as error:
        # Such as deletes by value, which other engines write.
        raise DestinationError(
            f"the rows of {catalog.name}:{relation} cannot be read without Spark "
            f"({type(error).__name__})",
            "see that its files can be reached from here, and that no other engine has written "
            "deletes by value; rewrite_data_files folds these in",
        ) from None


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
