"""Rows from source to staged files, one Spark task for each share of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidegate.errors import LoadError
from tidegate.lake.files import LakePlace, write_file
from tidegate.model.load import StagedWrite
from tidegate.spark.copying import SnapshotReader
from tidegate.spark.executors import lacking
from tidegate.spark.outcome import (
    OUTCOME_SCHEMA,
    Carried,
    carried_failure,
    collect_writes,
    failure,
    only,
    outcome_batches,
    spark_reason,
)
from tidegate.spark.tags import tagged, work_tag
from tidegate.spark.transforming import read_share

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


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
    except Carried as carried:
        return carried.outcome
    except Exception as error:
        return failure(error, "destination")
