"""Landed changes into staging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, StagedWrite
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Column
from tidegate.core.shape import Shape
from tidegate.iceberg.catalog import backticked
from tidegate.iceberg.session import iceberg_session
from tidegate.load.context import Context
from tidegate.load.source import Prepare
from tidegate.load.sources.cdc.fold import BASE, DELETED, DELETED_AT, NUMBER, UNCHANGED
from tidegate.load.sources.cdc.landing import LandedChanges
from tidegate.load.sources.cdc.landing_fold import (
    LandedBatch,
    landed_columns,
    mark_rest,
    refuse_unfilled,
)
from tidegate.load.sources.iceberg import joined
from tidegate.load.sources.iceberg_table import SnapshotChanges
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import exported
from tidegate.load.sources.resolve import lake_shape, passthrough_shape
from tidegate.load.stage import (
    Staged,
    lake_frame_shape,
    stage_rows,
    staging_place,
    transformed_shape,
    typed_columns,
)
from tidegate.load.target import Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.load.targets.postgres.table import fit_shape
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.types import spark_type
from tidegate.spark.binary_copy import SnapshotReader
from tidegate.spark.user_code import importable, user_code

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
        from tidegate.spark.transform import read_frame

        return read_frame(spark, self.reader(select, where), kinds)


@contextmanager
def _reading(batch: LandedBatch, rows: int) -> Iterator[_Reading]:
    context, connection_name = batch.context, batch.sync.target.connection
    is_lake = isinstance(batch.destination, IcebergTarget)
    wanted = min(max(1, rows // _SHARE_ROWS), 2 * context.spark.parallelism())
    with batch.destination.open() as connection, exported(connection) as snapshot:
        conninfo = context.databases.portable_conninfo(CONTROL if is_lake else connection_name)
        yield _Reading(batch, conninfo, snapshot, wanted)


def stage_into_lake(batch: LandedBatch, destination: IcebergTarget, prepare: Prepare) -> Staged:
    """Rows that are whole are written as they are; the others are filled from the lake's table."""
    from tidegate.iceberg.staged_files import stage_shares

    landed, context = batch.landed, batch.context
    shape = batch.complete(replace(lake_shape(batch.source), key_is_unique=True), "timestamp")
    prepare(shape)
    rows, unfilled = _fold_frame(batch)
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
    from tidegate.spark.transform import apply_transform, frame_columns

    context, sync, destination = batch.context, batch.sync, batch.destination
    assert sync.transform is not None
    rows, unfilled = _fold_frame(batch)
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
        if isinstance(destination, IcebergTarget):
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
            result = joined(SnapshotChanges(result, gone), key)
        writes = list(
            stage_rows(context, destination, sync.target, shape, result, batch.attempt_id, what)
            if rows
            else ()
        )
    if batch.marks_all and isinstance(destination, IcebergTarget):
        writes += _mark_rest(batch, destination, shape, rows)
    elif batch.marks_all:
        place = staging_place(context, sync.target, shape, batch.attempt_id)
        with destination.open() as connection, connection.transaction():
            staged = [place.table(write.write_id) for write in writes]
            writes += mark_rest(batch, connection, shape, staged)
    return Staged(shape, tuple(writes))


def _fold_frame(batch: LandedBatch) -> tuple[int, int]:
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
    destination: IcebergTarget,
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
    with iceberg_session(batch.context.spark, destination.catalog, batch.attempt_id) as session:
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
    batch: LandedBatch, destination: IcebergTarget, shape: Shape, rows: int
) -> tuple[StagedWrite, ...]:
    """Stage the rows of a lake's table that a truncate has deleted, marked so."""
    from pyspark.sql import functions as f

    key = shape.key
    with iceberg_session(batch.context.spark, destination.catalog, batch.attempt_id) as session:
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


def stage_landed(
    landed: LandedChanges,
    destination: Target,
    *,
    context: Context,
    sync: Sync,
    source: PostgresSource,
    connection: Connection,
    batch: Batch,
    attempt_id: str,
    prepare: Prepare,
    soft: bool = False,
) -> Staged:
    """Stage what was landed for a batch of kind CHANGES, or FULL after a hard truncate.

    `connection` is a session of the source, which names the types of the landed columns. The
    landing table becomes the staging table of a Postgres target; of a lake it is read by Spark.
    Call it once for a landing: rows are folded in place.
    """
    found = LandedBatch(
        landed=landed,
        destination=destination,
        context=context,
        sync=sync,
        source=replace(source, columns=landed_columns(connection, source, landed)),
        full=batch.kind is BatchKind.FULL,
        soft=soft,
        attempt_id=attempt_id,
    )
    if sync.transform is not None:
        return stage_transformed(found, prepare)
    if isinstance(destination, IcebergTarget):
        return stage_into_lake(found, destination, prepare)
    return _stage_into_postgres(found, prepare)


def _stage_into_postgres(batch: LandedBatch, prepare: Prepare) -> Staged:
    landed, destination, source = batch.landed, batch.destination, batch.source
    with destination.open() as connection:
        shape = passthrough_shape(connection, source)
    texts = tuple(replace(column, staged_type="text") for column in shape.columns)
    # Folding leaves one row a key, whatever the indexes of the source prove.
    shape = replace(shape, columns=texts, key_is_unique=True)
    shape = batch.complete(shape, "timestamp with time zone")
    prepare(shape)
    writes: list[StagedWrite] = []
    with destination.open() as connection, connection.transaction():
        if landed.rows and (rows := _fold(batch, connection, shape)):
            writes.append(StagedWrite(landed.write_id, rows))
        if batch.marks_all:
            writes += mark_rest(batch, connection, shape, [batch.table] if writes else [])
    return Staged(shape, tuple(writes))


def _fold(batch: LandedBatch, connection: Connection, shape: Shape) -> int:
    """Fold the landing table in place; how many rows are left."""
    landed, relation = batch.landed, batch.destination.relation
    fitted = fit_shape(connection, relation, shape)
    fold = batch.fold(connection, {one.name: one.target_type for one in fitted.columns})
    rows = fold.fold()
    if batch.full and landed.deletes:
        rows -= fold.drop_gone()
    if landed.unfilled:
        target = describe_table(connection, relation)
        fold.fill_from(relation, () if target is None else target.column_names)
        refuse_unfilled(relation, fold.unfilled(), batch.sync.name)
    return rows
