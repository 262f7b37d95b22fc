"""Landed changes on their way into the usual staging: folded to one row a key, values filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from tidegate.destinations import merge
from tidegate.destinations.destination import Destination
from tidegate.destinations.target import fit_shape
from tidegate.errors import DeclarationError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import Column
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape, StagedColumn
from tidegate.model.staging import new_write_id
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import passthrough_shape
from tidegate.pipeline.landed_fold import LandedFold, mark_statement, refuse_unfilled
from tidegate.pipeline.landing import Landed, landing_table
from tidegate.pipeline.landing_table import DELETED, DELETED_AT
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import Staged, staging_place
from tidegate.postgres.catalog import describe_columns, describe_table
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Landing:
    """A batch of landed changes, and where it goes."""

    landed: Landed
    destination: Destination
    context: Context
    sync: Sync
    source: PostgresSource
    """with the columns that the changes had"""
    full: bool
    soft: bool
    attempt_id: str

    @property
    def table(self) -> sql.Identifier:
        return landing_table(self.landed, self.destination, self.attempt_id)

    @property
    def marks_all(self) -> bool:
        """Whether what the target holds is to be marked as deleted."""
        return self.soft and self.landed.emptied_at is not None

    def complete(self, shape: Shape, moment_type: str) -> Shape:
        """The shape with what deletes add to it."""
        if not self.soft:
            gone = self.landed.deletes and not self.full
            return replace(shape, deleted=DELETED if gone else None)
        if DELETED_AT in shape.names:
            raise DeclarationError(
                f"sync {self.sync.name}: its rows have a column {DELETED_AT} of their own, which "
                'deletes = "soft" fills',
                'rename it, leave it out with exclude_columns, or use deletes = "hard"',
            )
        added = StagedColumn(DELETED_AT, moment_type, moment_type)
        return replace(shape, columns=(*shape.columns, added))


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
    landing = Landing(
        landed=landed,
        destination=destination,
        context=context,
        sync=sync,
        source=replace(source, columns=landed_columns(connection, source, landed)),
        full=batch.kind is BatchKind.FULL,
        soft=soft,
        attempt_id=attempt_id,
    )
    return _stage_into_postgres(landing, prepare)


def landed_columns(
    connection: Connection, source: PostgresSource, landed: Landed
) -> tuple[Column, ...]:
    """The columns that the changes had, which need not be those that the source has now."""
    if not landed.columns:
        return source.columns
    found = {
        column.name: column
        for column in describe_columns(
            connection,
            [column.name for column in landed.columns],
            [column.type_oid for column in landed.columns],
            [column.type_modifier for column in landed.columns],
        )
    }
    columns: list[Column] = []
    for one in landed.columns:
        column = found.get(one.name)
        now = source.table.column(one.name)
        if column is None:
            column = Column(one.name, "text", "text", via_text=True, not_null=False)
        columns.append(replace(column, not_null=now is not None and now.not_null))
    return tuple(columns)


def _stage_into_postgres(landing: Landing, prepare: Prepare) -> Staged:
    landed, destination, source = landing.landed, landing.destination, landing.source
    with destination.open() as connection:
        shape = passthrough_shape(connection, source)
    texts = tuple(replace(column, staged_type="text") for column in shape.columns)
    # Folding leaves one row a key, whatever the indexes of the source prove.
    shape = replace(shape, columns=texts, key_is_unique=True)
    shape = landing.complete(shape, "timestamp with time zone")
    prepare(shape)
    writes: list[StagedWrite] = []
    with destination.open() as connection, connection.transaction():
        if landed.rows:
            rows = _fold(landing, connection, shape)
            if rows:
                writes.append(StagedWrite(landed.write_id, rows))
        if landing.marks_all:
            marked = mark_rest(landing, connection, shape, [landing.table] if writes else [])
            if marked.rows:
                writes.append(marked)
    return Staged(shape, tuple(writes))


def _fold(landing: Landing, connection: Connection, shape: Shape) -> int:
    """Fold the landing table in place; how many rows are left."""
    landed, relation = landing.landed, landing.destination.relation
    fitted = fit_shape(connection, relation, shape)
    kinds = {column.name: column.target_type for column in fitted.columns}
    fold = LandedFold(
        connection, landing.table, landed, shape.key, tuple(kinds[name] for name in shape.key)
    )
    known: tuple[str, ...] = ()
    if landed.unfilled:
        target = describe_table(connection, relation)
        assert target is not None
        known = target.column_names
    for first, last in landed.unfilled:
        fold.fill_from_earlier(first, last)
        fold.fill_from(relation, known, first, last)
    rows = landed.rows - fold.keep_last()
    if landing.full and landed.deletes:
        rows -= fold.drop_gone()
    if landed.unfilled:
        refuse_unfilled(relation, fold.unfilled(), landing.sync.name)
    return rows


def mark_rest(
    landing: Landing, connection: Connection, shape: Shape, staged: list[sql.Identifier]
) -> StagedWrite:
    """Stage the rows of the target that a truncate has deleted, marked so."""
    destination, write_id = landing.destination, new_write_id()
    place = staging_place(landing.context, landing.sync.target, shape, landing.attempt_id)
    connection.execute(place.create_statement(write_id))
    fitted = fit_shape(connection, destination.relation, shape)
    key_shape = replace(
        fitted, columns=tuple(one for one in fitted.columns if one.name in shape.key)
    )
    keys: sql.Composable = sql.SQL("SELECT {} FROM {} t WHERE false").format(
        sql.SQL(", ").join(map(sql.Identifier, shape.key)),
        sql.Identifier(destination.relation.schema, destination.relation.name),
    )
    if staged:
        keys = merge.staged_rows(staged, key_shape, cast=True)
    cursor = connection.execute(
        mark_statement(
            place.table(write_id),
            shape.staged,
            destination.relation,
            DELETED_AT,
            sql.SQL("{}::timestamptz").format(sql.Literal(landing.landed.emptied_at)),
            keys,
            merge.same_key("t", "s", shape.key),
        )
    )
    return StagedWrite(write_id, cursor.rowcount)
