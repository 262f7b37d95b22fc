"""An Iceberg table as a source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.config.sync import Mode, Rules, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan
from tidegate.core.errors import DeclarationError, LoadError, TidegateError
from tidegate.core.identity import load_update_id
from tidegate.core.relation import Table
from tidegate.core.shape import Shape, StagedColumn
from tidegate.core.watermark import CursorType, Guarantee, Watermark
from tidegate.iceberg.metadata import read_table
from tidegate.iceberg.session import IcebergSession, iceberg_session
from tidegate.iceberg.table import IcebergTable
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_target
from tidegate.load.engine import FINISHES_REFRESH, Transfer
from tidegate.load.inspection import ReadSessions, read_lock, refuse_other_plane
from tidegate.load.plan import KeyPlan, SyncPlan, TargetPlan
from tidegate.load.source import PassOver, Prepare
from tidegate.load.sources.dataframe import target_type
from tidegate.load.sources.iceberg_table import (
    IcebergTableReader,
    SnapshotChanges,
    added,
    lake_declaration,
    read_changes,
    refuse_changed_lake,
    resolve_lake_source,
)
from tidegate.load.stage import Staged, lake_frame_shape, stage_rows
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.load.targets.postgres.table import check_present
from tidegate.postgres.catalog import describe_table, is_empty
from tidegate.postgres.queries import qualified
from tidegate.spark.task_outcome import spark_reason
from tidegate.spark.user_code import importable, user_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "tidegate_deleted"


@dataclass(slots=True)
class IcebergSource:
    """A table of a lake, read snapshot after snapshot, or all of it each time."""

    context: Context
    sync: Sync
    source: IcebergTableReader

    @property
    def names(self) -> tuple[str, ...]:
        return self.source.column_names

    @property
    def cursor_type(self) -> CursorType | None:
        return None

    @property
    def loads_whole(self) -> bool:
        return self.sync.mode is Mode.REPLACE

    def rules(self, _: Batch) -> Rules:
        return self.sync.rules

    def update_id(self, batch: Batch, watermark: Watermark) -> str:
        return load_update_id(
            pipeline=self.sync.pipeline,
            source=self.source.identity,
            target=str(self.sync.target.relation),
            generation=watermark.generation,
            version=watermark.version,
            batch=batch,
        )

    def declaration(self, _: Batch | None, __: Watermark, columns: Any) -> dict[str, Any]:
        return lake_declaration(self.sync, self.source, columns)

    def check(self, _: Watermark) -> None:
        """Nothing to refuse before a scan."""

    @contextmanager
    def scan(self, transfer: Transfer, watermark: Watermark) -> Iterator[IcebergScan]:
        refuse_changed_lake(watermark, self.source, self.sync)
        yield IcebergScan(self.context, self.sync, self.source, transfer)


@dataclass(slots=True)
class IcebergScan:
    """Everything where that is asked for, then every snapshot up to main."""

    context: Context
    sync: Sync
    source: IcebergTableReader
    transfer: Transfer
    _table: IcebergTable | None = None
    _resumes: bool = False
    _is_done: bool = False

    @contextmanager
    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> Iterator[Batch | PassOver | None]:
        if self._is_done:
            yield None
            return
        table = self._table = self.source.read()
        # What an earlier attempt was at, unless its snapshots have gone since.
        self._resumes = resumed is not None and self.source.is_there(table, resumed)
        if self._resumes:
            yield resumed
        elif (whole := self._whole_batch(table, watermark)) is not None:
            yield whole
        elif self.sync.mode is Mode.REPLACE:
            yield None
        else:
            yield self._next_batch(table, watermark)

    def stored(self, batch: Batch) -> dict[str, Any]:
        return {"final": batch.is_last}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        assert self._table is not None
        return self._stage(self._table, batch, prepare)

    def published(self, plan: LoadPlan) -> None:
        if self.sync.mode is Mode.REPLACE:
            self._is_done = plan.batch.kind is BatchKind.FULL
        elif plan.batch.kind is not BatchKind.FULL and not self._resumes:
            self._is_done = plan.batch.is_last

    def passed(self, _: PassOver, __: Watermark) -> None:
        self._is_done = True

    def _whole_batch(self, table: IcebergTable, watermark: Watermark) -> Batch | None:
        """Everything, once: for a refresh, or because main is not where it was."""
        if not (self.transfer.refreshes or self.sync.mode is Mode.REPLACE):
            return None
        if any(load.batch.kind is BatchKind.FULL for load in self.transfer.outcome.loads):
            return None
        found = self.source.whole_batch(table, BatchKind.FULL)
        if self.transfer.refreshes or watermark.version == 0 or watermark.value != found.high:
            return found
        # Somebody may have emptied or dropped the target meanwhile.
        return None if found.rows == 0 or self.transfer.target.holds_rows() else found

    def _next_batch(self, table: IcebergTable, watermark: Watermark) -> Batch | PassOver | None:
        value = watermark.value
        if value is not None and value != str(table.main):
            waiting = self.source.waiting(table, value)
            if all(snapshot.changes_nothing for snapshot in waiting):
                # The snapshot that was loaded last may expire, and nobody knows the way on.
                return PassOver(str(table.main))
        return self.source.next_batch(table, value)

    def _stage(self, table: IcebergTable, batch: Batch, prepare: Prepare) -> Staged:
        fence = self.transfer.attempt.fence
        with iceberg_session(self.context.spark, self.source.catalog, fence.attempt_id) as session:
            what = (
                f"the transformation of sync {self.sync.name}"
                if self.sync.transform is not None
                else f"sync {self.sync.name}"
            )
            try:
                changes = self._transformed(session, self.source.changes(session, table, batch))
                shape = self._shape(changes, what)
            except TidegateError:
                raise
            except Exception as error:
                raise LoadError(
                    f"sync {self.sync.name}: {self.sync.source} cannot be read: "
                    f"{spark_reason(error)}",
                    "run again; nothing was published",
                ) from error
            prepare(shape)
            if batch.kind is BatchKind.FULL and batch.high is None:
                return Staged(shape, ())
            # Each part is a session and a table in the destination, which has not so many to give.
            parts = self.sync.partitions or self.context.spark.parallelism()
            rows = joined(changes, self.source.key).coalesce(parts)
            writes = stage_rows(
                self.context,
                self.transfer.target,
                self.sync.target,
                shape,
                rows,
                fence.attempt_id,
                what,
            )
        return Staged(shape, writes)

    def _transformed(self, session: IcebergSession, changes: SnapshotChanges) -> SnapshotChanges:
        """The user's function sees the rows that are there; who is gone is told by its key."""
        from tidegate.spark.transform import apply_transform

        transform = self.sync.transform
        if transform is None:
            return changes
        code = user_code(self.context.settings)
        self.context.spark.ship(code, session.spark)
        with importable(code):
            return replace(changes, rows=apply_transform(transform, changes.rows, self.sync.name))

    def _shape(self, changes: SnapshotChanges, what: str) -> Shape:
        key = self.source.key
        if isinstance(self.transfer.target, IcebergTarget):
            shape = lake_frame_shape(changes.rows, what, key, None)
        else:
            with self.transfer.target.open() as connection:
                target = describe_table(connection, self.transfer.target.relation)
            shape = _postgres_shape(changes.rows, what, key, target)
        return shape if changes.gone is None else replace(shape, deleted=DELETED)


def joined(changes: SnapshotChanges, key: tuple[str, ...]) -> DataFrame:
    """Rows and deletes as they are staged: the latter have a key, a flag, and nothing else."""
    from pyspark.sql import functions as f

    rows = changes.rows
    if changes.gone is None:
        return rows
    kinds = {one.name: one.dataType for one in rows.schema.fields}
    gone = changes.gone.toDF(*(f"k{index}" for index in range(len(key))))
    columns = [
        (f.col(f"k{key.index(name)}") if name in key else f.lit(None)).cast(kind).alias(name)
        for name, kind in kinds.items()
    ]
    flagged = rows.withColumn(DELETED, f.lit(False))
    return flagged.union(gone.select(*columns, f.lit(True).alias(DELETED)))


def _postgres_shape(
    frame: DataFrame, what: str, key: tuple[str, ...], target: Table | None
) -> Shape:
    from tidegate.spark.transform import frame_columns

    columns = tuple(
        StagedColumn(name, kind, target_type(target, name, kind))
        for name, _, kind in frame_columns(frame, what)
    )
    names = {column.name for column in columns}
    missing = next((name for name in key if name not in names), None)
    if missing is not None:
        raise DeclarationError(
            f"{what} drops the key column {missing}",
            "keep the key, or declare another with key = …",
        )
    return Shape(columns, key, None, key_is_unique=False)


_BECAUSE = "every commit to the table is a snapshot, and none is passed over"


def plan_lake_sync(sessions: ReadSessions, sync: Sync) -> SyncPlan:
    """Plan one sync; raises what a run would raise before it writes anything."""
    context = sessions.context
    source = resolve_lake_source(context, sync)
    target = sessions.target(sync.target.connection)
    watermark = Watermarks(context.ledger(sync.target.connection)).get(
        target, sync.pipeline, str(sync.target.relation)
    )
    refuse_changed_lake(watermark, source, sync)
    refuse_changed_target(context, sessions.control(), sync)
    refuse_other_plane(sessions, sync)
    target_plan = _target(sessions, sync, watermark)
    waiting = _waiting(source, watermark)
    main = source.table.main
    return SyncPlan(
        sync=sync.name,
        source=sync.source_name,
        target=str(sync.target),
        mode=sync.mode.value,
        transformed=sync.transform is not None,
        key=KeyPlan(
            source.key,
            bool(sync.key),
            proven=False,
            origin="declared" if sync.key else "identifier fields",
        ),
        cursor=None,
        watermark=watermark.value,
        generation=watermark.generation,
        version=watermark.version,
        horizon=None,
        guarantee=Guarantee.EXACT,
        because=_BECAUSE,
        lookback=None,
        held_by=None,
        rows=waiting.rows,
        rows_are_exact=False,
        batches=waiting.batches,
        next_batch=waiting.batch,
        partitions=sync.partitions or 1,
        statements=(),
        publish=None,
        target_table=target_plan,
        lock=read_lock(sessions, sync),
        expected_seconds=None,
        warnings=_warnings(sync, watermark, target_plan),
        notes=sync.notes,
        source_rows=source.table.rows(),
        source_snapshot=None if main is None else str(main),
        snapshots=waiting.snapshots,
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: Batch | None
    snapshots: int
    rows: int
    batches: int


def _waiting(source: IcebergTableReader, watermark: Watermark) -> _Waiting:
    table, value = source.table, watermark.value
    main = None if table.main is None else str(table.main)
    if watermark.is_refreshing:
        return _Waiting(source.whole_batch(table, BatchKind.FULL), 1, table.rows(), 1)
    if main is None or value == main:
        return _Waiting(None, 0, 0, 0)
    whole = source.mode is Mode.REPLACE
    if value is None or whole:
        kind = BatchKind.FULL if whole else BatchKind.SNAPSHOTS
        return _Waiting(source.whole_batch(table, kind), 1, table.rows(), 1)
    waiting = source.waiting(table, value)
    if all(snapshot.changes_nothing for snapshot in waiting):
        return _Waiting(None, len(waiting), 0, 0)
    batches, rest = 0, waiting
    while rest:
        rest = rest[len(read_changes(rest, source.batch_rows)) :]
        batches += 1
    return _Waiting(source.next_batch(table, value), len(waiting), added(waiting), batches)


def _target(sessions: ReadSessions, sync: Sync, watermark: Watermark) -> TargetPlan:
    """The target as it is; its columns are checked when Spark tells those of the rows."""
    relation = sync.target.relation
    if sessions.context.is_lake(sync.target.connection):
        found = read_table(sessions.context.catalog(sync.target.connection), relation)
        return TargetPlan(found is not None, found is not None and found.rows() > 0)
    target = sessions.target(sync.target.connection)
    if sync.mode is not Mode.REPLACE:
        adds = sync.mode is Mode.APPEND and not sync.key
        check_present(target, relation, watermark, sync.project, adds=adds)
    exists = describe_table(target, relation) is not None
    return TargetPlan(exists, exists and not is_empty(target, qualified(relation)))


def _warnings(sync: Sync, watermark: Watermark, target: TargetPlan) -> tuple[str, ...]:
    found: list[str] = []
    if target.rows_present and watermark.version == 0:
        found.append(f"{sync.target} holds rows already and everything is loaded into it")
    if watermark.is_refreshing:
        found.append(FINISHES_REFRESH)
    return tuple(found)
