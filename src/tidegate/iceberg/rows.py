"""Rows at one snapshot, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import BusyError, DestinationError, StagingLost
from tidegate.core.relation import Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import file_io, read_metadata
from tidegate.iceberg.staged_files import staged_path
from tidegate.iceberg.table import IcebergTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata

_ROWS = 10_000


def file_batches(
    metadata: TableMetadata, io: Any, task: FileScanTask, schema: Schema, wanted: BooleanExpression
) -> Iterator[pa.RecordBatch]:
    """Rows of the file that a task is for, with the columns of `schema`."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
    from pyiceberg.manifest import FileFormat

    deletes = _read_all_delete_files(io, [task])
    if wanted == AlwaysTrue() and task.file.file_format is FileFormat.PARQUET:
        positions = deletes.get(task.file.file_path, [])
        yield from _all_rows(metadata, io, task, schema, positions)
        return
    # Few rows, whose places the file's own statistics tell.
    scan = ArrowScan(metadata, io, schema, wanted)
    yield from scan._record_batches_from_scan_tasks_and_deletes([task], deletes)


def _all_rows(
    metadata: TableMetadata, io: Any, task: FileScanTask, schema: Schema, deletes: list[Any]
) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        _combine_positional_deletes,
        _get_column_projection_values,
        _to_requested_schema,
        pyarrow_to_schema,
    )
    from pyiceberg.schema import prune_columns

    version = metadata.format_version
    with io.new_input(task.file.file_path).open() as stream:
        file = pq.ParquetFile(stream, pre_buffer=False)
        has = pyarrow_to_schema(
            file.schema_arrow,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=version <= 2,
            format_version=version,
        )
        # Columns of which a partition has one value may be left out of its files.
        implied = _get_column_projection_values(
            task.file, schema, metadata.schema(), metadata.specs().get(task.file.spec_id),
            has.field_ids,
        )  # fmt: skip
        taken = prune_columns(has, schema.field_ids, select_full_types=False)
        names = [column.name for column in taken.columns]
        start = 0
        for read in file.iter_batches(_ROWS, columns=names):
            end = start + read.num_rows
            batch = read
            if deletes:
                batch = read.take(_combine_positional_deletes(deletes, start, end))
            start = end
            if batch.num_rows:
                yield _to_requested_schema(
                    schema,
                    taken,
                    batch,
                    downcast_ns_timestamp_to_us=version <= 2,
                    projected_missing_fields=implied,
                    allow_timestamp_tz_mismatch=True,
                )


@dataclass(frozen=True, slots=True)
class SnapshotRows:
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
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo
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


def main_rows(catalog: Catalog, relation: Relation) -> SnapshotRows | None:
    """The rows of a table as it is now; None when there is none."""
    metadata = read_metadata(catalog, relation)
    if metadata is None:
        return None
    return SnapshotRows(catalog, relation, metadata, metadata.current_snapshot_id)


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
    catalog: Catalog, table: IcebergTable, writes: Sequence[StagedWrite]
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
