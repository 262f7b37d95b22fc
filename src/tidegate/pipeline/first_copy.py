"""Staging the first copy of a sync by its changes: the whole table, as one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from psycopg import sql

from tidegate.destinations.destination import Destination
from tidegate.destinations.lake import LakeDestination
from tidegate.model.shape import Shape, StagedColumn
from tidegate.pipeline.declaration import lake_shape, passthrough_shape
from tidegate.pipeline.landing_table import DELETED_AT
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import (
    Reading,
    Staged,
    passed_columns,
    stage_batch,
    staging_place,
    typed_columns,
)
from tidegate.postgres.types import lake_type
from tidegate.spark.copying import Copy

MARK_TYPE = "timestamp with time zone"


def stage_first_copy(
    reading: Reading,
    destination: Destination,
    attempt_id: str,
    soft: bool,
    prepare: Prepare,
) -> Staged:
    """Stage every row; where deleted rows stay, those of the copy are marked as not deleted."""
    if not soft:
        return stage_batch(reading, destination, attempt_id=attempt_id, prepare=prepare)
    if reading.sync.transform is not None:
        marked = replace(reading.sync, transform=_marking(reading.sync.transform))
        return stage_batch(
            replace(reading, sync=marked), destination, attempt_id=attempt_id, prepare=prepare
        )
    context, source = reading.context, reading.source
    unmarked = sql.SQL("NULL::{} AS {}").format(sql.SQL(MARK_TYPE), sql.Identifier(DELETED_AT))
    if isinstance(destination, LakeDestination):
        from tidegate.lake.staging import stage_shares

        shape = mark_column(lake_shape(source), lake_type(MARK_TYPE))
        prepare(shape)
        if reading.batch.rows == 0:
            return Staged(shape, ())
        reader = reading.reader([*typed_columns(source), unmarked])
        place = destination.place(shape, attempt_id)
        return Staged(shape, stage_shares(context.spark.get(), reader, place))
    with destination.open() as connection:
        shape = mark_column(passthrough_shape(connection, source), MARK_TYPE)
    prepare(shape)
    if reading.batch.rows == 0:
        return Staged(shape, ())
    reader = reading.reader([*passed_columns(source), unmarked])
    staging = staging_place(context, reading.sync.target, shape, attempt_id)
    return Staged(shape, context.stager.stage(Copy(reader, staging)))


def mark_column(shape: Shape, kind: str) -> Shape:
    """With the column that says when a row was deleted."""
    return replace(shape, columns=(*shape.columns, StagedColumn(DELETED_AT, kind, kind)))


def _marking(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def marked(frame: Any) -> Any:
        from pyspark.sql import functions as f

        return transform(frame).withColumn(DELETED_AT, f.lit(None).cast("timestamp"))

    return marked
