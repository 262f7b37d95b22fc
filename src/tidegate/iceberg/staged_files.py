"""Staged rows as Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import LoadError, ValueRefused
from tidegate.core.failpoints import reach
from tidegate.core.identity import new_write_id
from tidegate.spark.binary_copy import SnapshotReader
from tidegate.spark.tags import tagged, work_tag
from tidegate.spark.task_outcome import (
    OUTCOME_SCHEMA,
    VALUE_HINT,
    TaskFailure,
    carried_failure,
    collect_writes,
    failure,
    lacking,
    only,
    other_version,
    outcome_batches,
    spark_reason,
)
from tidegate.spark.transform import arrow_type, read_share
from tidegate.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Rows that are gathered before they are written: readers skip whole groups of them.
_GROUP_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a staged file; without a number it is matched by its name."""

    name: str
    type: str
    field_id: int | None = None


@dataclass(frozen=True, slots=True)
class LakePlace:
    """Where a task stages its rows; travels to the workers with the task."""

    location: str
    """of the table"""
    folder: str
    io: tuple[tuple[str, str], ...]
    """how files are reached there"""
    attempt_id: str
    columns: tuple[LakeColumn, ...]
    version: str = __version__
    """the driver's Tidegate"""

    def __repr__(self) -> str:
        return f"LakePlace({self.folder})"

    def check_version(self) -> None:
        """Called by the workers, who may have another Tidegate installed than the driver."""
        if self.version != __version__:
            raise other_version(self.version, __version__)


def new_folder(attempt_id: str) -> str:
    """The name of a folder for the files of one load; its files may become the table's own."""
    return f"tidegate-{attempt_id}-{new_write_id()[:8]}"


def write_share(
    place: LakePlace, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> dict[str, Any]:
    """One writer call: its own file, which is there whole or not at all."""
    try:
        place.check_version()
        return write_file(place, _chain(first, rest))
    except Exception as error:
        return failure(error, "destination")


def write_file(place: LakePlace, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    """Write the rows; tells the file's name and how many they were."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import load_file_io

    write_id = f"{place.folder}/{new_write_id()}"
    path = staged_path(place.location, write_id)
    schema = arrow_schema(place)
    io = load_file_io(dict(place.io), path)
    rows = 0
    reach("stage.write")
    with (
        io.new_output(path).create() as stream,
        # Dictionaries cost a fifth of the time, and files are no smaller with them.
        pq.ParquetWriter(stream, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for group in _groups(batches):
            table = pa.Table.from_batches(
                [pa.RecordBatch.from_arrays(batch.columns, names=schema.names) for batch in group]
            )
            writer.write_table(_fit(table, schema), row_group_size=_GROUP_ROWS)
            rows += table.num_rows
    reach("stage.written")
    return {"write_id": write_id, "rows": rows}


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the types of the file; a value that does not fit is refused by its column."""
    import pyarrow as pa

    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueRefused(
                f"column {field.name} holds a value that does not fit {field.type}, its type in "
                "the lake",
                VALUE_HINT,
                detail=str(error),
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)


def arrow_schema(place: LakePlace) -> pa.Schema:
    """The columns with Iceberg's numbers, by which it knows them in a file."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(
                column.name,
                arrow_type(column.type),
                metadata=None
                if column.field_id is None
                else {"PARQUET:field_id": str(column.field_id)},
            )
            for column in place.columns
        ]
    )


def staged_path(location: str, write_id: str) -> str:
    """Where the file of one writer call is."""
    return f"{_data(location)}/{write_id}.parquet"


def count_rows(io: Any, location: str, write: StagedWrite) -> int:
    """How many rows a staged file has; none when it is not there."""
    import pyarrow.parquet as pq

    try:
        with io.new_input(staged_path(location, write.write_id)).open() as stream:
            return int(pq.read_metadata(stream).num_rows)
    except FileNotFoundError:
        return 0


def delete_folder(io: Any, location: str, folder: str) -> int:
    """Remove staged files; how many there were."""
    from pyarrow.fs import FileSelector

    files, plain = _place(io, location, folder)
    found = files.get_file_info(FileSelector(plain, allow_not_found=True, recursive=True))
    if found:
        files.delete_dir(plain)
    return sum(one.is_file for one in found)


def has_files(io: Any, location: str, folder: str) -> bool:
    """Whether staged files are left in a folder."""
    from pyarrow.fs import FileSelector

    files, plain = _place(io, location, folder)
    return bool(files.get_file_info(FileSelector(plain, allow_not_found=True, recursive=True)))


def _place(io: Any, location: str, folder: str) -> tuple[Any, str]:
    """The file system of a folder, and its name there."""
    scheme, netloc, plain = io.parse_location(f"{_data(location)}/{folder}", io.properties)
    return io.fs_by_scheme(scheme, netloc), plain


def _data(location: str) -> str:
    return f"{location.rstrip('/')}/data"


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def stage_shares(
    spark: SparkSession, reader: SnapshotReader, place: LakePlace
) -> tuple[StagedWrite, ...]:
    """Read every share of the batch as Arrow and write it as it is."""
    columns = [(column.name, column.type) for column in place.columns]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from outcome_batches(_stage_share(reader, index, columns, place))

    count = len(reader.statements)
    frame = spark.range(0, count, 1, count).mapInArrow(work, OUTCOME_SCHEMA)
    try:
        with tagged(spark, work_tag(place.attempt_id)):
            return only(collect_writes(frame))
    except Exception as error:
        known = carried_failure(error) or lacking(error)
        if known is not None:
            raise known from error
        raise LoadError(
            f"Spark failed while it staged the rows: {spark_reason(error)}",
            "run again; nothing was published",
        ) from error


def _stage_share(
    reader: SnapshotReader, index: int, columns: list[tuple[str, str]], place: LakePlace
) -> dict[str, object]:
    try:
        place.check_version()
        return write_file(place, read_share(reader, index, columns))
    except TaskFailure as carried:
        return carried.outcome
    except Exception as error:
        return failure(error, "destination")
