"""Write a batch aside: statements, shape, place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, StagedWrite
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Column, Endpoint
from tidegate.core.shape import Shape, StagedColumn
from tidegate.iceberg.staged_files import write_share
from tidegate.load.context import Context
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import lake_shape, nearest, passthrough_shape
from tidegate.load.target import Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.queries import holds_own_sql
from tidegate.postgres.types import needs_text, spark_type
from tidegate.spark.binary_copy import Copy, SnapshotReader, StagingPlace
from tidegate.spark.user_code import importable, user_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHORT = {"tinyint": "int", "smallint": "int"}
_FLAT = frozenset(
    {
        "boolean", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    }
)  # fmt: skip


def lake_frame_shape(
    frame: DataFrame, what: str, key: tuple[str, ...], cursor: str | None
) -> Shape:
    """The shape of a DataFrame's rows; refuses what Iceberg has no type for."""
    columns: list[StagedColumn] = []
    for field in frame.schema.fields:
        found = field.dataType.simpleString()
        kind = _SHORT.get(found, found)
        if kind not in _FLAT and not kind.startswith("decimal("):
            raise DeclarationError(
                f"{what}: column {field.name} is {found}, which cannot be put into a lake",
                "turn it into text with to_json(…), or into plain columns",
            )
        columns.append(StagedColumn(field.name, kind, kind))
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(f"{what} has column {twice} twice", "give them different names")
    for role, wanted in [*(("key column", name) for name in key)]:
        if wanted not in names:
            raise DeclarationError(f"{what} has no {role} {wanted}", nearest(wanted, names))
    return Shape(tuple(columns), key, cursor if cursor in names else None, key_is_unique=False)


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
    snapshot: Snapshot
    batch: Batch
    where: sql.Composable | None = None
    """which rows, where the batch does not say it"""

    def reader(self, select: list[sql.Composable]) -> SnapshotReader:
        return SnapshotReader(
            conninfo=self.context.databases.portable_conninfo(self.sync.source.connection),
            snapshot=self.snapshot,
            statements=tuple(
                self.source.read_statements(
                    self.connection,
                    self.batch,
                    select,
                    partitions=self.sync.partitions,
                    parallelism=self.context.spark.parallelism(),
                    where=self.where,
                )
            ),
            own_path=holds_own_sql(self.source.relation),
        )


def stage_batch(
    reading: Reading,
    destination: Target,
    *,
    attempt_id: str,
    prepare: Callable[[Shape], None],
) -> Staged:
    """Write the batch aside; `prepare` sees the shape before the first row moves."""
    context, sync, source = reading.context, reading.sync, reading.source
    if sync.transform is not None:
        return _stage_transformed(reading, destination, attempt_id, prepare)
    if isinstance(destination, IcebergTarget):
        return _stage_into_lake(reading, destination, attempt_id, prepare)
    with destination.open() as connection:
        shape = passthrough_shape(connection, source)
    prepare(shape)
    if reading.batch.rows == 0:
        return Staged(shape, ())
    place = staging_place(context, sync.target, shape, attempt_id)
    reader = reading.reader(passed_columns(source))
    return Staged(shape, context.stager.stage(Copy(reader, place)))


def _stage_into_lake(
    reading: Reading,
    destination: IcebergTarget,
    attempt_id: str,
    prepare: Callable[[Shape], None],
) -> Staged:
    from tidegate.iceberg.staged_files import stage_shares

    shape = lake_shape(reading.source)
    prepare(shape)
    if reading.batch.rows == 0:
        return Staged(shape, ())
    place = destination.place(shape, attempt_id)
    reader = reading.reader(typed_columns(reading.source))
    return Staged(shape, stage_shares(reading.context.spark.get(), reader, place))


def _stage_transformed(
    reading: Reading,
    destination: Target,
    attempt_id: str,
    prepare: Callable[[Shape], None],
) -> Staged:
    rows, shape, what = transformed_rows(reading, destination)
    prepare(shape)
    context, target = reading.context, reading.sync.target
    return Staged(shape, stage_rows(context, destination, target, shape, rows, attempt_id, what))


def transformed_rows(reading: Reading, destination: Target) -> tuple[DataFrame, Shape, str]:
    """What the sync's transformation makes of the rows, their shape, and what to call them."""
    from tidegate.spark.transform import apply_transform, frame_columns, read_frame

    context, sync, source = reading.context, reading.sync, reading.source
    assert sync.transform is not None
    columns = [(column.name, spark_type(column.wire)) for column in source.columns]
    code = user_code(context.settings)
    context.spark.ship(code)
    frame = read_frame(context.spark.get(), reading.reader(typed_columns(source)), columns)
    with importable(code):
        result = apply_transform(sync.transform, frame, sync.name)
    what = f"the transformation of sync {sync.name}"
    if isinstance(destination, IcebergTarget):
        shape = lake_frame_shape(result, what, source.key, source.lake_order)
    else:
        shape = transformed_shape(frame_columns(result, what), source, sync)
    return result, shape, what


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


def stage_rows(
    context: Context,
    destination: Target,
    target: Endpoint,
    shape: Shape,
    frame: DataFrame,
    attempt_id: str,
    what: str,
) -> tuple[StagedWrite, ...]:
    """Stage a DataFrame's rows wherever they go."""
    from tidegate.spark.transform import copy_share, stage_frame

    if isinstance(destination, IcebergTarget):
        return stage_frame(frame, destination.place(shape, attempt_id), what, write_share)
    place = staging_place(context, target, shape, attempt_id)
    return stage_frame(frame, place, what, copy_share)


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
