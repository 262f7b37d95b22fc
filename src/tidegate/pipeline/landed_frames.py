"""Landed changes that are read by Spark: on their way into a lake, or through a transformation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.destinations.lake import LakeDestination
from tidegate.errors import DeclarationError
from tidegate.lake.catalog import backticked
from tidegate.lake.session import lake_session
from tidegate.model.column import Column
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape
from tidegate.pipeline.declaration import lake_shape
from tidegate.pipeline.lake_frames import lake_frame_shape
from tidegate.pipeline.lake_sync import joined
from tidegate.pipeline.landed_batch import LandedBatch
from tidegate.pipeline.landed_fold import refuse_unfilled
from tidegate.pipeline.landed_marks import mark_rest
from tidegate.pipeline.landing_table import BASE, DELETED, DELETED_AT, NUMBER, UNCHANGED
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import (
    Staged,
    stage_rows,
    staging_place,
    transformed_shape,
    typed_columns,
)
from tidegate.pipeline.user_code import importable, user_code
from tidegate.postgres.connect import Snapshot
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.types import spark_type
from tidegate.sources.lake import Changes
from tidegate.sources.reading import exported
from tidegate.spark.copying import SnapshotReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARE_ROWS = 125_000
_Kinds = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The folded rows of a landing table, under one snapshot of its database."""

    batch: LandedBatch
    conninfo: str
    snapshot: Snapshot
    shares: int

    def reader(self, select: Sequence[sql.Composable], where: sql.Composable) -> SnapshotReader:
        return SnapshotReader(
            conninfo=self.conninfo,
            snapshot=self.snapshot,
            statements=tuple(
                sql.SQL("SELECT {} FROM {} WHERE {} AND {} % {} = {}")
                .format(
                    sql.SQL(", ").join(select),
                    self.batch.table,
                    where,
                    sql.Identifier(NUMBER),
                    sql.Literal(self.shares),
                    sql.Literal(share),
                )
                .as_string(None)
                for share in range(self.shares)
            ),
        )

    def frame(
        self,
        spark: SparkSession,
        select: Sequence[sql.Composable],
        where: sql.Composable,
        kinds: _Kinds,
    ) -> DataFrame:
        from tidegate.spark.transforming import read_frame

        return read_frame(spark, self.reader(select, where), kinds)


@contextmanager
def _reading(batch: LandedBatch, rows: int) -> Iterator[_Reading]:
    context, connection_name = batch.context, batch.sync.target.connection
    is_lake = isinstance(batch.destination, LakeDestination)
    wanted = min(max(1, rows // _SHARE_ROWS), 2 * context.spark.parallelism())
    with batch.destination.open() as connection, exported(connection) as snapshot:
        conninfo = context.databases.portable_conninfo(CONTROL if is_lake else connection_name)
        yield _Reading(batch, conninfo, snapshot, wanted)


def stage_into_lake(batch: LandedBatch, destination: LakeDestination, prepare: Prepare) -> Staged:
    """Rows that are whole are written as they are; the others are filled from the lake's table."""
    from tidegate.lake.staging import stage_shares

    landed, context = batch.landed, batch.context
    shape = batch.complete(replace(lake_shape(batch.source), key_is_unique=True), "timestamp")
    prepare(shape)
    rows, unfilled = _fold(batch)
    writes: list[StagedWrite] = []
    if rows:
        select = [*typed_columns(batch.source), *_own(batch, shape)]
        with _reading(batch, rows) as reading:
            if rows > unfilled:
                reader = reading.reader(select, _is_null(UNCHANGED))
                place = destination.place(shape, batch.attempt_id)
                writes += stage_shares(context.spark.get(), reader, place)
            if unfilled:
                writes += _stage_filled(reading, destination, shape, select)
    if batch.marks_all:
        writes += _mark_rest(batch, destination, shape, landed.rows)
    return Staged(shape, tuple(writes))


def stage_transformed(batch: LandedBatch, prepare: Prepare) -> Staged:
    """The user's function sees the rows that are there; who is gone is told by its key."""
    from tidegate.spark.transforming import apply_transform, frame_columns

    context, sync, destination = batch.context, batch.sync, batch.destination
    assert sync.transform is not None
    rows, unfilled = _fold(batch)
    # Its rows are not those of the target, so that nothing can be taken from there.
    refuse_unfilled(destination.relation, unfilled, sync.name)
    what = f"the transformation of sync {sync.name}"
    key = batch.source.key
    kinds = [(column.name, spark_type(column.wire)) for column in batch.source.columns]
    select = typed_columns(batch.source)
    if batch.soft:
        kinds.append((DELETED_AT, "timestamp"))
        select.append(sql.Identifier(DELETED_AT))
    here = sql.SQL("true") if batch.soft else sql.SQL("NOT {}").format(sql.Identifier(DELETED))
    code = user_code(context.settings)
    context.spark.ship(code)
    spark = context.spark.get()
    with _reading(batch, rows) as reading:
        frame = reading.frame(spark, select, here, kinds)
        with importable(code):
            result = apply_transform(sync.transform, frame, sync.name)
        if isinstance(destination, LakeDestination):
            shape = lake_frame_shape(result, what, key, None)
        else:
            shape = transformed_shape(frame_columns(result, what), batch.source, sync)
        if batch.soft and DELETED_AT not in shape.names:
            raise DeclarationError(
                f"{what} drops the column {DELETED_AT}", 'keep it, or use deletes = "hard"'
            )
        if not batch.soft:
            shape = batch.complete(shape, "timestamp")
        prepare(shape)
        if shape.deleted is not None:
            keys = [column for column in batch.source.columns if column.name in key]
            gone = reading.frame(
                spark,
                typed_columns(replace(batch.source, columns=tuple(_ordered(keys, key)))),
                sql.Identifier(DELETED),
                [(column.name, spark_type(column.wire)) for column in _ordered(keys, key)],
            )
            result = joined(Changes(result, gone), key)
        writes = list(
            stage_rows(context, destination, sync.target, shape, result, batch.attempt_id, what)
            if rows
            else ()
        )
    if batch.marks_all and isinstance(destination, LakeDestination):
        writes += _mark_rest(batch, destination, shape, rows)
    elif batch.marks_all:
        place = staging_place(context, sync.target, shape, batch.attempt_id)
        with destination.open() as connection, connection.transaction():
            staged = [place.table(write.write_id) for write in writes]
            writes += mark_rest(batch, connection, shape, staged)
    return Staged(shape, tuple(writes))


def _fold(batch: LandedBatch) -> tuple[int, int]:
    """Fold the landing table in place; how many rows are left, and how many lack a value."""
    landed = batch.landed
    if not landed.rows:
        return 0, 0
    # A lake compares keys in types whose texts are as different as their values.
    kinds = {column.name: "text" for column in batch.source.columns}
    with batch.destination.open() as connection, connection.transaction():
        fold = batch.fold(connection, kinds)
        rows = fold.fold()
        if batch.full and landed.deletes:
            rows -= fold.drop_gone()
        return rows, fold.unfilled() if landed.unfilled else 0


def _stage_filled(
    reading: _Reading,
    destination: LakeDestination,
    shape: Shape,
    select: Sequence[sql.Composable],
) -> tuple[StagedWrite, ...]:
    """Stage the rows whose large values were not sent, with those that the table has."""
    from pyspark.sql import functions as f

    batch = reading.batch
    key, staged = shape.key, shape.staged
    types = dict(staged)
    bases = [(f"{BASE}{place}", types[name]) for place, name in enumerate(key)]
    columns = _ordered(batch.source.columns, key)
    base_select = [
        typed
        for place, column in enumerate(columns)
        for typed in typed_columns(
            replace(batch.source, columns=(replace(column, name=f"{BASE}{place}"),))
        )
    ]
    with lake_session(batch.context.spark, destination.catalog, batch.attempt_id) as session:
        rows = reading.frame(
            session.spark,
            [*base_select, sql.Identifier(UNCHANGED), *select],
            sql.SQL("NOT {}").format(_is_null(UNCHANGED)),
            [*bases, (UNCHANGED, "string"), *staged],
        )
        # Numbers instead of names, where a dot or a backtick would have a meaning.
        rows = rows.toDF(
            *(f"b{place}" for place in range(len(key))),
            "mask",
            *(f"c{place}" for place in range(len(staged))),
        )
        names = [name for name, _ in staged]
        table = session.spark.table(destination.catalog.quoted(destination.relation)).select(
            *(f.col(backticked(name)).alias(f"t{names.index(name)}") for name in shape.names)
        )
        same = [
            f.col(f"b{place}") == f.col(f"t{names.index(name)}") for place, name in enumerate(key)
        ]
        filled = rows.join(table, same, "left")
        missing = filled.where(f.col(f"t{names.index(key[0])}").isNull()).count()
        refuse_unfilled(destination.relation, missing, batch.sync.name)
        places = batch.landed.places
        values = [
            f.when(f.substring("mask", places.index(name) + 1, 1) == "1", f.col(f"t{place}"))
            .otherwise(f.col(f"c{place}"))
            .alias(f"c{place}")
            if name in places and name not in key
            else f.col(f"c{place}")
            for place, name in enumerate(names)
        ]
        return stage_rows(
            batch.context,
            destination,
            batch.sync.target,
            shape,
            filled.select(*values),
            batch.attempt_id,
            f"sync {batch.sync.name}",
        )


def _mark_rest(
    batch: LandedBatch, destination: LakeDestination, shape: Shape, rows: int
) -> tuple[StagedWrite, ...]:
    """Stage the rows of a lake's table that a truncate has deleted, marked so."""
    from pyspark.sql import functions as f

    key = shape.key
    with lake_session(batch.context.spark, destination.catalog, batch.attempt_id) as session:
        table = session.spark.table(destination.catalog.quoted(destination.relation))
        rest = table.where(f.col(backticked(DELETED_AT)).isNull()).select(
            *(
                f.lit(batch.landed.emptied_at).alias(f"c{place}")
                if name == DELETED_AT
                else f.col(backticked(name)).alias(f"c{place}")
                for place, name in enumerate(shape.names)
            )
        )
        with _reading(batch, rows) as reading:
            if rows:
                types = dict(shape.staged)
                columns = _ordered(batch.source.columns, key)
                staged = reading.frame(
                    session.spark,
                    typed_columns(replace(batch.source, columns=tuple(columns))),
                    sql.SQL("true"),
                    [(column.name, types[column.name]) for column in columns],
                ).toDF(*(f"k{place}" for place in range(len(key))))
                same = [
                    f.col(f"k{place}") == f.col(f"c{shape.names.index(name)}")
                    for place, name in enumerate(key)
                ]
                rest = rest.join(staged, same, "left_anti")
            return stage_rows(
                batch.context,
                destination,
                batch.sync.target,
                shape,
                rest,
                batch.attempt_id,
                f"sync {batch.sync.name}",
            )


def _own(batch: LandedBatch, shape: Shape) -> list[sql.Composable]:
    """What is staged beside the columns of the source."""
    if batch.soft:
        return [sql.Identifier(DELETED_AT)]
    return [] if shape.deleted is None else [sql.Identifier(DELETED)]


def _is_null(name: str) -> sql.Composed:
    return sql.SQL("{} IS NULL").format(sql.Identifier(name))


def _ordered(columns: Sequence[Column], key: Sequence[str]) -> list[Column]:
    """The columns of the key, in its order."""
    by_name = {column.name: column for column in columns}
    return [by_name[name] for name in key]
