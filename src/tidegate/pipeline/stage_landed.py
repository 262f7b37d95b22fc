"""Landed changes on their way into the usual staging: folded to one row a key, values filled in."""

from __future__ import annotations

from dataclasses import replace

from tidegate.destinations.destination import Destination
from tidegate.destinations.lake import LakeDestination
from tidegate.destinations.target import fit_shape
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import passthrough_shape
from tidegate.pipeline.landed_batch import LandedBatch, landed_columns
from tidegate.pipeline.landed_fold import refuse_unfilled
from tidegate.pipeline.landed_frames import stage_into_lake, stage_transformed
from tidegate.pipeline.landed_marks import mark_rest
from tidegate.pipeline.landing import Landed
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import Staged
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource


def stage_landed(
    landed: Landed,
    destination: Destination,
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
    if isinstance(destination, LakeDestination):
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
