"""Verifying a sync with a transformation: its rows are staged again and compared in the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from psycopg import errors as pg
from psycopg import sql

from tidegate.destinations import merge
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import BusyError, StagingLost
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch
from tidegate.model.drift import Loaded
from tidegate.model.identity import new_attempt_id
from tidegate.model.load import StagedWrite
from tidegate.model.shape import Shape
from tidegate.model.staging import staging_table
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.bags import compare_bags
from tidegate.pipeline.cdc_waiting import send_waiting
from tidegate.pipeline.comparable import check_comparable
from tidegate.pipeline.compare import LEFT_OUT, NONE, Hashing, Side
from tidegate.pipeline.loaded import compared_batches, reads_whole, waiting_batches
from tidegate.pipeline.opened import Examine, Opened, PostgresDifference
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.set_aside import leave_out_rejected, rejected_side
from tidegate.pipeline.sides import (
    not_left_out,
    send_left_out,
    target_rows,
    target_snapshot,
)
from tidegate.pipeline.stage import Reading, Staged, stage_batch
from tidegate.pipeline.sync import tolerates_duplicates
from tidegate.pipeline.verdict import Compared, Since
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection, Snapshot
from tidegate.sources.postgres import PostgresSource

_TRIES = 3


def compare_transformed(
    sessions: Sessions,
    sync: Sync,
    source: PostgresSource,
    *,
    nulls_loaded: Callable[[], bool],
    since: Callable[[Watermark], Since],
    examine: Examine,
) -> Compared:
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
    sessions: Sessions
    sync: Sync
    source: PostgresSource
    destination: PostgresDestination
    attempt_id: str
    examine: Examine

    def compare(
        self, nulls_loaded: Callable[[], bool], since: Callable[[Watermark], Since]
    ) -> Compared:
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
                    target, shape, _writes(loaded), hashing, Compared(watermark, NONE, left_out)
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
        found: Compared,
    ) -> Compared:
        sync = self.sync
        table = describe_table(target, sync.target.relation)
        assert table is not None
        loaded = Loaded.recorded(found.watermark.declaration, self.source.table.column_names)
        found = replace(found, drift=check_comparable(target, sync, shape, loaded))
        rejected = leave_out_rejected(target, sync, table, shape)
        left_out = replace(found.left_out, rejected=len(rejected))
        names = [sql.Identifier("e", name) for name in shape.names]
        key = [sql.Identifier("e", name) for name in shape.key or shape.names]
        staged: sql.Composable = self._rows(target, shape, writes)
        if shape.key and tolerates_duplicates(sync):
            staged = merge.newest_rows(staged, shape)
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
        comparison, older, count = compare_bags(*sides, hashing, sync.mode, put_in, aside)
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
            row = target.execute(merge.count_statement(table)).fetchone()
            if row is None or row[0] != write.rows:
                raise StagingLost(f"rows staged for {self.sync.target} are gone")
        return merge.staged_rows(tables, shape, cast=True)

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
