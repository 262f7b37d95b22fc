"""Run a transformation again, for all rows or one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, StagedWrite
from tidegate.core.errors import BusyError, StagingLost
from tidegate.core.identity import new_attempt_id, staging_table
from tidegate.core.relation import RelationKind
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import Watermark
from tidegate.iceberg.rows import staged_batches
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.inspection import ReadSessions
from tidegate.load.sources.database import tolerates_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.watermark_conditions import (
    compared_batches,
    reads_whole,
    waiting_batches,
)
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.load.targets.postgres import statements
from tidegate.load.targets.postgres.target import PostgresTarget
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.verify.compare import LEFT_OUT, NONE, Hashing, Side, compare_multisets
from tidegate.verify.compared_rows import (
    check_comparable,
    leave_out_rejected,
    not_left_out,
    rejected_side,
    send_left_out,
    send_waiting,
    target_rows,
    target_snapshot,
)
from tidegate.verify.difference import Examine, Opened, PostgresDifference
from tidegate.verify.iceberg_rows import copy_to_postgres
from tidegate.verify.verdict import ComparedSync, SourceChange

_TRIES = 3


def compare_transformed(
    sessions: ReadSessions,
    sync: Sync,
    source: PostgresSource,
    *,
    nulls_loaded: Callable[[], bool],
    since: Callable[[Watermark], SourceChange],
    examine: Examine,
) -> ComparedSync:
    """Compare what the transformation gives now for loaded rows with what is in the target."""
    destination = sessions.context.postgres_destination(sync.target)
    for _ in range(_TRIES):
        work = _Staging(sessions, sync, source, destination, new_attempt_id(), examine)
        try:
            return work.compare(nulls_loaded, since)
        except (_Moved, StagingLost, pg.UndefinedTable):
            # A run published or swept meanwhile; what is compared must belong together.
            continue
        finally:
            destination.discard(work.attempt_id)
    raise BusyError(f"{sync.target} is being loaded all the while", "verify again when it is quiet")


class _Moved(Exception):
    """The watermark moved while rows were being staged."""


@dataclass(frozen=True, slots=True)
class _Staging:
    sessions: ReadSessions
    sync: Sync
    source: PostgresSource
    destination: PostgresTarget
    attempt_id: str
    examine: Examine

    def compare(
        self, nulls_loaded: Callable[[], bool], since: Callable[[Watermark], SourceChange]
    ) -> ComparedSync:
        connection = self.sessions.source(self.sync.source.connection)
        target = self.sessions.target(self.sync.target.connection)
        watermark = self._watermark(target)
        # An unfinished tie counts as not loaded: its rows are left out on both sides.
        even = replace(watermark, position=None)
        with self.sessions.context.reading(connection, self.source) as snapshot:
            nulls = nulls_loaded()
            loaded = self._stage(
                connection, snapshot, compared_batches(self.source, even, nulls=nulls)
            )
            waiting = self._stage(
                connection, snapshot, waiting_batches(self.source, even, nulls=nulls)
            )
            shape = (loaded + waiting)[0].shape
            # Only now: rows staged after a snapshot are not seen in it.
            with target_snapshot(target):
                if self._watermark(target) != watermark:
                    raise _Moved
                if self.sync.changes == "cdc":
                    kinds = {column.name: column.target_type for column in shape.columns}
                    left_out = send_waiting(
                        self.sessions.context, self.sync, self.source, target, watermark, kinds
                    )
                else:
                    left_out = send_left_out(connection, target, self.source, even, nulls=nulls)
                self._leave_out(target, shape, _writes(waiting))
                hashing = Hashing.between(connection, target)
                found = self._compare(
                    target, shape, _writes(loaded), hashing, ComparedSync(watermark, NONE, left_out)
                )
            if found.comparison.difference is not None and reads_whole(self.source, self.sync):
                found = replace(found, since=since(watermark))
        return found

    def _compare(
        self,
        target: Connection,
        shape: Shape,
        writes: Sequence[StagedWrite],
        hashing: Hashing,
        found: ComparedSync,
    ) -> ComparedSync:
        sync = self.sync
        table = describe_table(target, sync.target.relation)
        assert table is not None
        loaded = LoadedShape.recorded(found.watermark.declaration, self.source.table.column_names)
        found = replace(found, drift=check_comparable(target, sync, shape, loaded))
        rejected = leave_out_rejected(target, sync, table, shape)
        left_out = replace(found.left_out, rejected=len(rejected))
        names = [sql.Identifier("e", name) for name in shape.names]
        key = [sql.Identifier("e", name) for name in shape.key or shape.names]
        staged: sql.Composable = self._rows(target, shape, writes)
        if shape.key and tolerates_duplicates(sync):
            staged = statements.newest_rows(staged, shape)
        if left_out.any and shape.key:
            staged = sql.SQL("SELECT * FROM ({}) e WHERE {}").format(staged, not_left_out(key))
        ours = sql.SQL("SELECT {} FROM ({}) e").format(hashing.row(key, names), staged)
        sides = (
            Side(target, ours),
            Side(target, target_rows(table, shape, hashing, left_out=left_out, soft=sync.is_soft)),
        )
        if shape.key:
            mending = PostgresDifference(
                self.sessions.context,
                sync,
                table,
                _as_cast(shape),
                hashing,
                Side(target, staged),
                sides[1],
                loaded,
            )
            opened = Opened(self.source, found.watermark, hashing, *sides, mending.stage)
            comparison = self.examine(opened)
            return replace(found, comparison=comparison, left_out=left_out, used_spark=True)
        aside = rejected_side(target, sync, table, shape, found.watermark, hashing)
        ledger = Watermarks(self.sessions.context.ledger(sync.target.connection))
        put_in = ledger.rows_put_in(target, str(sync.target.relation))
        comparison, older, count = compare_multisets(*sides, hashing, sync.mode, put_in, aside)
        return replace(
            found,
            comparison=comparison,
            left_out=replace(left_out, rejected=count),
            keyless=True,
            older=older,
            used_spark=True,
        )

    def _leave_out(self, target: Connection, shape: Shape, writes: Sequence[StagedWrite]) -> None:
        """Keys that the transformation makes of rows above the watermark, should it change them."""
        if writes and shape.key:
            rows = self._rows(target, shape, writes)
            key = sql.SQL(", ").join(sql.Identifier(name) for name in shape.key)
            target.execute(
                sql.SQL("INSERT INTO {} SELECT ROW({})::text FROM ({}) s").format(
                    LEFT_OUT, key, rows
                )
            )

    def _rows(
        self, target: Connection, shape: Shape, writes: Sequence[StagedWrite]
    ) -> sql.Composable:
        """The staged rows, if they are all still there."""
        if not writes:
            nothing = [
                sql.SQL("NULL::{} AS {}").format(
                    sql.SQL(column.target_type), sql.Identifier(column.name)
                )
                for column in shape.columns
            ]
            return sql.SQL("SELECT {} WHERE false").format(sql.SQL(", ").join(nothing))
        tables = [
            sql.Identifier(
                self.destination.ledger.schema,
                staging_table(self.destination.control_id, self.attempt_id, write.write_id),
            )
            for write in writes
        ]
        for write, table in zip(writes, tables, strict=True):
            row = target.execute(statements.count_statement(table)).fetchone()
            if row is None or row[0] != write.rows:
                raise StagingLost(f"rows staged for {self.sync.target} are gone")
        return statements.staged_rows(tables, shape, cast=True)

    def _stage(
        self, connection: Connection, snapshot: Snapshot, batches: Sequence[Batch]
    ) -> list[Staged]:
        return [
            stage_batch(
                Reading(
                    self.sessions.context,
                    self.sync,
                    self.source,
                    connection,
                    snapshot,
                    replace(batch, rows=self._count(connection, batch)),
                ),
                self.destination,
                attempt_id=self.attempt_id,
                prepare=lambda _: None,
            )
            for batch in batches
        ]

    def _watermark(self, target: Connection) -> Watermark:
        ledger = self.destination.ledger
        return Watermarks(ledger).get(target, self.sync.pipeline, str(self.sync.target.relation))

    def _count(self, connection: Connection, batch: Batch) -> int:
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
                self.source.relation, self.source.condition(batch)
            )
        ).fetchone()
        assert row is not None
        return int(row[0])


def _as_cast(shape: Shape) -> Shape:
    """The rows as they were cast once they had been staged."""
    columns = (replace(one, staged_type=one.target_type) for one in shape.columns)
    return replace(shape, columns=tuple(columns))


def _writes(staged: Sequence[Staged]) -> list[StagedWrite]:
    return [write for one in staged for write in one.writes]


_MOST = 10


@dataclass(frozen=True, slots=True)
class TransformedRow:
    """The rows that came out, as text in the types of the target."""

    rows: list[dict[str, str | None]]


def transform_row(
    sessions: ReadSessions, sync: Sync, source: PostgresSource, same: sql.Composable
) -> TransformedRow:
    """Apply the transformation to the rows of the source that meet `same`."""
    connection = sessions.source(sync.source.connection)
    target = sessions.target(sync.target.connection)
    destination = sessions.context.destination(sync.target)
    attempt_id = new_attempt_id()
    try:
        narrowed = _only(connection, source, same)
        with sessions.context.reading(connection, narrowed) as snapshot:
            staged = stage_batch(
                Reading(
                    sessions.context,
                    sync,
                    narrowed,
                    connection,
                    snapshot,
                    Batch(BatchKind.FULL, rows=1),
                ),
                destination,
                attempt_id=attempt_id,
                prepare=lambda _: None,
            )
        if not staged.writes:
            return TransformedRow([])
        if isinstance(destination, IcebergTarget):
            return _read_files(target, destination, staged)
        tables = [
            sql.Identifier(
                destination.ledger.schema,
                staging_table(destination.control_id, attempt_id, write.write_id),
            )
            for write in staged.writes
        ]
        rows = statements.staged_rows(tables, staged.shape, cast=True)
        return _read(target, rows, staged.shape.names)
    finally:
        destination.discard(attempt_id)


def _read(target: Connection, rows: sql.Composable, names: Sequence[str]) -> TransformedRow:
    found = target.execute(
        sql.SQL("SELECT ARRAY[{}] FROM ({}) s LIMIT {}").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
            rows,
            sql.Literal(_MOST),
        )
    ).fetchall()
    return TransformedRow([dict(zip(names, row[0], strict=True)) for row in found])


def _read_files(target: Connection, destination: IcebergTarget, staged: Staged) -> TransformedRow:
    table = destination.read()
    if table is None:
        return TransformedRow([])
    kinds = [
        (column.name, known.type if (known := table.field(column.name)) else column.staged_type)
        for column in staged.shape.columns
    ]
    with copy_to_postgres(target, "tidegate_why_made", kinds) as made:
        made.fill(staged_batches(destination.catalog, table, staged.writes))
        return _read(target, made.rows, staged.shape.names)


def _only(connection: Connection, source: PostgresSource, same: sql.Composable) -> PostgresSource:
    """The source with nothing in it but these rows."""
    query = sql.SQL("SELECT * FROM {} WHERE {}").format(source.relation, same)
    text = query.as_string(connection)
    table = replace(source.table, kind=RelationKind.QUERY, query=text)
    return replace(source, table=table, where=None)
