"""Stage what differs, for a repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, StagedWrite
from tidegate.core.errors import DestinationError
from tidegate.core.failpoints import reach
from tidegate.core.identity import new_write_id
from tidegate.core.relation import Table
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import Watermark
from tidegate.iceberg.staged_files import LakePlace, arrow_schema, write_file
from tidegate.load.context import Context
from tidegate.load.source import Prepare
from tidegate.load.sources.cdc.first_copy import MARK_TYPE, mark_column
from tidegate.load.sources.iceberg import DELETED
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import lake_shape
from tidegate.load.stage import (
    Reading,
    Staged,
    stage_rows,
    staging_place,
    transformed_rows,
    typed_columns,
)
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.load.targets.postgres.drift import find_evolution
from tidegate.load.targets.postgres.target import PostgresTarget
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.queries import qualified
from tidegate.spark.binary_copy import copy_rows
from tidegate.verify.compare import FOUND, Comparison, Hashing, KeyRanges, Side, compare, key_text
from tidegate.verify.compared_rows import columns_changed, target_columns
from tidegate.verify.iceberg_rows import PostgresCopy

if TYPE_CHECKING:
    import pyarrow as pa

StageRanges = Callable[[KeyRanges, str, Prepare], Staged]
"""Puts aside for an attempt what should be in these ranges, and the keys that should not.

What differs in them must have been told apart just before.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides of a comparison by key, for as long as their snapshots are held."""

    source: PostgresSource
    watermark: Watermark
    hashing: Hashing
    expected: Side
    found: Side
    stage: StageRanges


Examine = Callable[[Opened], Comparison]


def compare_only(opened: Opened) -> Comparison:
    """What `verify` does with a comparison."""
    return compare(opened.expected, opened.found, opened.hashing)


@dataclass(frozen=True, slots=True)
class PostgresDifference:
    """What a table of a database lacks and has too much, copied into staging without Spark."""

    context: Context
    sync: Sync
    table: Table
    shape: Shape
    """its staged types are those of the expected rows"""
    hashing: Hashing
    expected: Side
    """of rows as they are staged, not of their hashes"""
    found: Side
    loaded: LoadedShape | None
    """what the last load knew of the source's columns"""

    def stage(self, ranges: KeyRanges, attempt_id: str, prepare: Prepare) -> Staged:
        self._refuse_drift()
        shape = mark_column(self.shape, MARK_TYPE) if self.sync.is_soft else self.shape
        prepare(shape)
        shape = replace(shape, deleted=None if self.sync.is_soft else DELETED)
        place = staging_place(self.context, self.sync.target, shape, attempt_id)
        destination: PostgresTarget = self.context.postgres_destination(self.sync.target)
        write_id = new_write_id()
        names = [name for name, _ in shape.staged]
        sides = (
            (self.expected.connection, self._rows(ranges)),
            (self.found.connection, self._marked() if self.sync.is_soft else self._gone()),
        )
        with destination.open() as session, session.transaction():
            session.execute(place.create_statement(write_id))
            reach("stage.write")
            rows = sum(
                copy_rows(connection, query, session, place.table(write_id), names)
                for connection, query in sides
            )
        reach("stage.written")
        return Staged(shape, (StagedWrite(write_id, rows),))

    def _refuse_drift(self) -> None:
        """To change the target would wait for the snapshot in which it is being compared."""
        relation = self.table.relation
        evolution = find_evolution(
            self.found.connection, relation, self.shape, self.sync.rules, self.loaded
        )
        if evolution is not None and evolution.is_needed:
            raise columns_changed(self.sync, evolution.notes, "repair it")

    def _rows(self, ranges: KeyRanges) -> sql.Composed:
        key = key_text([sql.Identifier("e", name) for name in self.shape.key])
        return sql.SQL("SELECT {}, {} FROM ({}) e WHERE {}").format(
            sql.SQL(", ").join(sql.Identifier("e", name) for name in self.shape.names),
            sql.SQL(f"NULL::{MARK_TYPE}" if self.sync.is_soft else "false"),
            self.expected.rows,
            self.hashing.within(ranges, key),
        )

    def _marked(self) -> sql.Composed:
        """Rows that are too many stay as they are, but for the mark."""
        columns = [
            sql.SQL("{}::{}").format(value, sql.SQL(column.staged_type))
            for value, column in zip(
                target_columns(self.table, self.shape.names, self.shape),
                self.shape.columns,
                strict=True,
            )
        ]
        key = target_columns(self.table, self.shape.key, self.shape)
        return sql.SQL(
            "SELECT {}, clock_timestamp() FROM {} t"
            " WHERE {} IN (SELECT k FROM {} WHERE what = 'extra')"
        ).format(sql.SQL(", ").join(columns), qualified(self.table.relation), key_text(key), FOUND)

    def _gone(self) -> sql.Composed:
        """Of the rows that are too many nothing but the key is needed."""
        key = dict(
            zip(self.shape.key, target_columns(self.table, self.shape.key, self.shape), strict=True)
        )
        columns = [
            sql.SQL("{}::{}").format(
                key.get(column.name, sql.SQL("NULL")), sql.SQL(column.staged_type)
            )
            for column in self.shape.columns
        ]
        return sql.SQL(
            "SELECT {}, true FROM {} t WHERE {} IN (SELECT k FROM {} WHERE what = 'extra')"
        ).format(
            sql.SQL(", ").join(columns),
            qualified(self.table.relation),
            key_text(list(key.values())),
            FOUND,
        )


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
    found: PostgresCopy
    hashing: Hashing

    def stage(self, ranges: KeyRanges, attempt_id: str, prepare: Prepare) -> Staged:
        destination = self.context.destination(self.sync.target, self.sync.layout)
        assert isinstance(destination, IcebergTarget)
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
        self, destination: IcebergTarget, reading: Reading, attempt_id: str, prepare: Prepare
    ) -> tuple[Shape, tuple[StagedWrite, ...]]:
        from tidegate.iceberg.staged_files import stage_shares

        shape = replace(lake_shape(self.source), deleted=DELETED)
        prepare(shape)
        flag = sql.SQL("false AS {}").format(sql.Identifier(DELETED))
        reader = reading.reader([*typed_columns(self.source), flag])
        place = destination.place(shape, attempt_id)
        return shape, stage_shares(self.context.spark.get(), reader, place)

    def _stage_transformed(
        self, destination: IcebergTarget, reading: Reading, attempt_id: str, prepare: Prepare
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
