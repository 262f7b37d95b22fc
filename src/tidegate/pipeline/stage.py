"""Staging a batch: which statements read it, what the rows look like, how they are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from tidegate.errors import DeclarationError
from tidegate.model.batch import Batch
from tidegate.model.column import Column
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Endpoint
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import passthrough_shape
from tidegate.pipeline.user_code import importable, user_code
from tidegate.postgres.connect import Connection
from tidegate.postgres.types import needs_text, spark_type
from tidegate.sources.postgres import PostgresSource
from tidegate.spark.copying import Copy, SnapshotReader, StagingPlace


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging left behind."""

    shape: Shape
    writes: tuple[StagedWrite, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A batch as it is read: from which source, under which snapshot, for which sync."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    snapshot_name: str
    batch: Batch

    def reader(self, select: list[sql.Composable]) -> SnapshotReader:
        return SnapshotReader(
            conninfo=self.context.databases.portable_conninfo(self.sync.source.connection),
            snapshot=self.snapshot_name,
            statements=tuple(
                self.source.read_statements(
                    self.connection,
                    self.batch,
                    select,
                    partitions=self.sync.partitions,
                    parallelism=self.context.spark.parallelism(),
                )
            ),
        )


def stage_batch(reading: Reading, *, attempt_id: str, prepare: Callable[[Shape], None]) -> Staged:
    """Write the batch aside; `prepare` sees the shape before the first row moves."""
    context, sync, source = reading.context, reading.sync, reading.source
    if sync.transform is not None:
        return _stage_transformed(reading, sync.transform, attempt_id, prepare)
    with context.databases.lease(sync.target.connection) as destination:
        shape = passthrough_shape(destination, source)
    prepare(shape)
    if reading.batch.rows == 0:
        return Staged(shape, ())
    place = staging_place(context, sync.target, shape, attempt_id)
    reader = reading.reader(passed_columns(source))
    return Staged(shape, context.stager.stage(Copy(reader, place)))


def _stage_transformed(
    reading: Reading,
    transform: Callable[[Any], Any],
    attempt_id: str,
    prepare: Callable[[Shape], None],
) -> Staged:
    from tidegate.spark.transforming import apply_transform, frame_columns, read_frame, stage_frame

    context, sync, source = reading.context, reading.sync, reading.source
    columns = [(column.name, spark_type(column.wire)) for column in source.columns]
    code = user_code(context.settings)
    context.spark.ship(code)
    frame = read_frame(context.spark.get(), reading.reader(typed_columns(source)), columns)
    with importable(code):
        result = apply_transform(transform, frame, sync.name)
    what = f"the transformation of sync {sync.name}"
    shape = transformed_shape(frame_columns(result, what), source, sync)
    prepare(shape)
    place = staging_place(context, sync.target, shape, attempt_id)
    return Staged(shape, stage_frame(result, place, what))


def transformed_shape(
    result: list[tuple[str, str, str]], source: PostgresSource, sync: Sync
) -> Shape:
    """A column that kept its name and Spark type keeps its Postgres type as well."""
    names = {name for name, _, _ in result}
    for name in source.key:
        if name not in names:
            raise DeclarationError(
                f"sync {sync.name}: the transformation drops the key column {name}",
                "keep the key, or declare another with key = …",
            )
    columns: list[StagedColumn] = []
    for name, spark_name, target in result:
        known = source.table.column(name)
        kept = known is not None and spark_type(known.wire) == spark_name
        columns.append(
            StagedColumn(
                name=name,
                staged_type=_staged_type(known, target) if known and kept else target,
                target_type=_target_type(known, target) if known and kept else target,
            )
        )
    cursor = source.cursor.name if source.cursor and source.cursor.name in names else None
    return Shape(tuple(columns), source.key, cursor, key_is_unique=False)


def _staged_type(column: Column, plain: str) -> str:
    """Blanks at the end of a char(n) are lost on the way through Spark, and come back here."""
    return column.wire if re.fullmatch(r"character\(\d+\)", column.wire) else plain


def _target_type(column: Column, plain: str) -> str:
    return plain if column.via_text else column.wire


def staging_place(
    context: Context, target: Endpoint, shape: Shape, attempt_id: str
) -> StagingPlace:
    """Where the writers of an attempt put its rows."""
    return StagingPlace(
        conninfo=context.databases.portable_conninfo(target.connection),
        schema=context.settings.ledger.schema_name,
        control_id=context.control_id(),
        attempt_id=attempt_id,
        columns=shape.staged,
    )


def passed_columns(source: PostgresSource) -> list[sql.Composable]:
    """The select list of rows that travel in binary; what has no portable binary goes as text."""
    return [
        sql.SQL("{}::text").format(sql.Identifier(column.name))
        if column.via_text
        else sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(column.wire))
        if column.wire != column.type
        else sql.Identifier(column.name)
        for column in source.columns
    ]


def typed_columns(source: PostgresSource) -> list[sql.Composable]:
    """The select list of rows that become Arrow; what Spark has no type for goes as text."""
    return [
        sql.SQL("{name}::text AS {name}").format(name=sql.Identifier(column.name))
        if column.via_text or needs_text(column.wire)
        else sql.SQL("{name}::{type} AS {name}").format(
            name=sql.Identifier(column.name), type=sql.SQL(column.wire)
        )
        for column in source.columns
    ]
