"""What a lake's table lacks and has too much, put aside as files of one load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.destinations.lake import LakeDestination
from tidegate.errors import DestinationError
from tidegate.lake.files import LakePlace, arrow_schema, write_file
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.key_ranges import KeyRanges
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.pipeline.compare import FOUND, Hashing, key_text
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import lake_shape
from tidegate.pipeline.lake_mirror import Mirror
from tidegate.pipeline.lake_sync import DELETED
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import (
    Reading,
    Staged,
    stage_rows,
    transformed_rows,
    typed_columns,
)
from tidegate.postgres.connect import Connection, Snapshot
from tidegate.sources.postgres import PostgresSource

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class LakeDifference:
    """Rows come from the source again, in its snapshot; keys that are too many from the mirror."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    snapshot: Snapshot
    columns: Mapping[str, sql.Composable]
    """of the source, as the lake holds them"""
    loaded: sql.Composable
    """which rows of the source are in"""
    found: Mirror
    hashing: Hashing

    def stage(self, ranges: KeyRanges, attempt_id: str, prepare: Prepare) -> Staged:
        destination = self.context.destination(self.sync.target, self.sync.layout)
        assert isinstance(destination, LakeDestination)
        reading = self._reading(ranges)
        if self.sync.transform is None:
            shape, writes = self._stage_passed(destination, reading, attempt_id, prepare)
        else:
            shape, writes = self._stage_transformed(destination, reading, attempt_id, prepare)
        place = destination.place(shape, attempt_id)
        gone = write_file(place, self._gone(shape, place))
        if gone["rows"]:
            writes = (*writes, StagedWrite(gone["write_id"], gone["rows"]))
        return Staged(shape, writes)

    def _reading(self, ranges: KeyRanges) -> Reading:
        key = key_text([self.columns[name] for name in self.source.key])
        return Reading(
            self.context,
            self.sync,
            self.source,
            self.connection,
            self.snapshot,
            Batch(BatchKind.REPAIR, rows=ranges.rows),
            sql.SQL("({}) AND {}").format(self.loaded, self.hashing.within(ranges, key)),
        )

    def _stage_passed(
        self, destination: LakeDestination, reading: Reading, attempt_id: str, prepare: Prepare
    ) -> tuple[Shape, tuple[StagedWrite, ...]]:
        from tidegate.lake.staging import stage_shares

        shape = replace(lake_shape(self.source), deleted=DELETED)
        prepare(shape)
        flag = sql.SQL("false AS {}").format(sql.Identifier(DELETED))
        reader = reading.reader([*typed_columns(self.source), flag])
        place = destination.place(shape, attempt_id)
        return shape, stage_shares(self.context.spark.get(), reader, place)

    def _stage_transformed(
        self, destination: LakeDestination, reading: Reading, attempt_id: str, prepare: Prepare
    ) -> tuple[Shape, tuple[StagedWrite, ...]]:
        from pyspark.sql import functions as f

        frame, shape, what = transformed_rows(reading, destination)
        shape = replace(shape, deleted=DELETED)
        prepare(shape)
        rows = frame.withColumn(DELETED, f.lit(False))
        target = self.sync.target
        return shape, stage_rows(self.context, destination, target, shape, rows, attempt_id, what)

    def _gone(self, shape: Shape, place: LakePlace) -> Iterator[pa.RecordBatch]:
        """Keys that the source does not have, with a flag and nothing else."""
        import psycopg
        import pyarrow as pa

        schema = arrow_schema(place)
        key = [sql.Identifier("e", name) for name in shape.key]
        query = sql.SQL(
            "SELECT {} FROM ({}) e WHERE {} IN (SELECT k FROM {} WHERE what = 'extra')"
        ).format(sql.SQL(", ").join(key), self.found.rows, key_text(key), FOUND)
        try:
            with self.found.connection.cursor(name="tidegate_gone") as cursor:
                cursor.execute(query)
                while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                    values = dict(zip(shape.key, zip(*rows, strict=True), strict=True))
                    values[DELETED] = (True,) * len(rows)
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array(values.get(one.name, (None,) * len(rows)), one.type)
                            for one in schema
                        ],
                        names=schema.names,
                    )
        except psycopg.DataError as error:
            raise DestinationError(
                f"a key of {self.sync.target} cannot be read from here: {error}",
                f"to load everything again: tidegate run {self.sync.name} --full-refresh",
            ) from error
