"""The rows of one data file that are not deleted, in the table's columns and in flat memory.

pyiceberg's own scan keeps the bytes of the whole file until its end, and reads ahead as far as
it can. Here a file is read page by page; what its columns mean is still pyiceberg's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
