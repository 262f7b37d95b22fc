"""Changes = "cdc": first copy, then transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from psycopg import errors as pg

from tidegate.config.sync import Rules, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan
from tidegate.core.errors import SourceError
from tidegate.core.failpoints import reach
from tidegate.core.relation import RelationKind
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import CursorType, Guarantee, Horizon, Watermark, lsn_value
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.declaration_changes import refuse_changed_target
from tidegate.load.engine import FINISHES_REFRESH, Transfer
from tidegate.load.inspection import ReadSessions, read_lock, refuse_other_plane
from tidegate.load.plan import KeyPlan, LakePlan, SlotPlan, SyncPlan, TargetPlan, text_columns
from tidegate.load.source import PassOver, Prepare
from tidegate.load.sources.cdc.first_copy import CopyPoint, copy_point, stage_first_copy
from tidegate.load.sources.cdc.landing import LandedChanges, is_whole, land
from tidegate.load.sources.cdc.publication import ChangeLog
from tidegate.load.sources.cdc.slot import SlotOrigin, SlotPeek
from tidegate.load.sources.cdc.slot_lifecycle import (
    Look,
    SlotLifecycle,
    obstacles,
    refuse_obstacles,
)
from tidegate.load.sources.cdc.slot_registry import slot_remark
from tidegate.load.sources.cdc.staging import stage_landed
from tidegate.load.sources.cdc.tables import read_tables
from tidegate.load.sources.database import DatabaseSource, refuse_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open, count_rows
from tidegate.load.sources.resolve import lake_shape, passthrough_shape, resolve_source
from tidegate.load.stage import Reading, Staged
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.databases import label

# The server keeps its log in files of this size: moving on by less frees nothing.
_WORTH_BYTES = 16 << 20
_MORE = 4
_NO_HORIZON = Horizon(None, Guarantee.EXACT, "a snapshot of the log's own")


@dataclass(frozen=True, slots=True)
class _Read:
    """What one look at the slot has landed; `to_the_end` when nothing was left behind it."""

    landed: LandedChanges
    to_the_end: bool


@dataclass(slots=True)
class CdcSource(DatabaseSource):
    """The table as it was at one point of the log, then whole transactions after it."""

    slot: SlotOrigin | None = field(default=None, init=False)
    """where the log is read from, as it is recorded with the next load"""
    _changes: SlotLifecycle | None = field(default=None, init=False)

    @property
    def changes(self) -> SlotLifecycle:
        if self._changes is None:
            self._changes = SlotLifecycle.of(self.context, self.sync, self.source, self.connection)
        return self._changes

    @property
    def cursor_type(self) -> CursorType | None:
        return None

    @property
    def loads_whole(self) -> bool:
        return False

    def rules(self, batch: Batch) -> Rules:
        # A TRUNCATE in the log is what the source did; a copy only shows what it has now.
        rules = self.sync.rules
        return rules if batch.low is None else replace(rules, removal=None)

    def declaration(self, _: Batch | None, __: Watermark, columns: Any) -> dict[str, Any]:
        return self.changes.declaration(self.slot, columns)

    @contextmanager
    def scan(self, transfer: Transfer, watermark: Watermark) -> Iterator[CdcScan]:
        self.changes.refuse_changed(watermark)
        copies = watermark.value is None or watermark.is_refreshing
        scan = CdcScan(self, transfer, copies)
        yield scan
        scan.refuse_unlogged()
        self.follow_columns(transfer)


@dataclass(slots=True)
class CdcScan:
    """Copies the table if that was never done, then loads what changed up to now."""

    origin: CdcSource
    transfer: Transfer
    _copies: bool
    _look: Look | None = None
    _looked_at: datetime | None = None
    _is_new: bool = False
    _point: CopyPoint | None = None
    _landed: LandedChanges | None = None
    _read_at: datetime | None = None
    """set where nothing is left in the log behind what comes next"""
    _is_done: bool = False
    _gone: list[str] = field(default_factory=list)

    @contextmanager
    def next(
        self, watermark: Watermark, resumed: Batch | None
    ) -> Iterator[Batch | PassOver | None]:
        self._landed, self._read_at = None, None
        if self._copies:
            with self._copy(watermark) as batch:
                yield batch
        elif self._is_done:
            yield None
        elif (found := self._first_look(watermark)) is not None:
            yield found
        elif resumed is not None and resumed.low is not None:
            yield resumed
        else:
            yield self._next_changes(watermark)

    def stored(self, batch: Batch) -> dict[str, Any]:
        return {"final": batch.is_last}

    def stage(self, batch: Batch, prepare: Prepare) -> Staged:
        origin, target = self.origin, self.transfer.target
        attempt_id = self.transfer.attempt.fence.attempt_id
        if batch.low is None:
            assert self._point is not None
            reading = Reading(
                origin.context,
                origin.sync,
                origin.source,
                origin.connection,
                self._point.snapshot,
                batch,
            )
            return stage_first_copy(reading, target, attempt_id, self._soft, prepare)
        landed = self._landed
        if landed is None or not is_whole(landed, target, attempt_id):
            # Of an earlier attempt, or lost in a crash: decoded once more, to the same end.
            landed = self._land(self._peek(batch.high, None), batch.low, batch.high)
        return stage_landed(
            landed,
            target,
            context=origin.context,
            sync=origin.sync,
            source=origin.source,
            connection=origin.connection,
            batch=batch,
            attempt_id=attempt_id,
            prepare=prepare,
            soft=self._soft,
        )

    def published(self, plan: LoadPlan) -> None:
        batch = plan.batch
        assert batch.high is not None
        if batch.low is None:
            self._copies = False
            check_open(self.origin.connection, self.origin.source)
        self._reached(batch.high)

    def passed(self, found: PassOver, watermark: Watermark) -> None:
        if found.value == watermark.value:
            self._is_new = False
            return
        assert found.value is not None
        self._reached(found.value)

    def _reached(self, lsn: str) -> None:
        """All up to here is in: the slot may move on behind its slowest reader."""
        self.origin.changes.reached(lsn, self._read_at, self._check_alive)
        self._is_done = self._read_at is not None

    @property
    def _soft(self) -> bool:
        return self.origin.sync.is_soft

    def _check_alive(self) -> None:
        self.transfer.attempt.check_alive()

    # --- the first copy

    @contextmanager
    def _copy(self, watermark: Watermark) -> Iterator[Batch]:
        """Everything as it was at one point of the log, after which the slot has it all."""
        origin, context = self.origin, self.origin.context
        timeout = context.settings.cdc.start_timeout_seconds
        slot = origin.changes.start(timeout, self._check_alive)
        name = origin.sync.source.connection
        if watermark.version == 0:
            refuse_duplicates(origin.source, origin.connection, origin.sync.name)
        with copy_point(
            context.databases.conninfo(name),
            label(name),
            origin.connection,
            origin.source,
            timeout_seconds=timeout,
            lock_seconds=context.settings.safety.lock_timeout_seconds,
        ) as point:
            # In the copy's own snapshot: what comes later is noticed by the next run.
            tables = read_tables(origin.connection, origin.source).tables
            origin.slot, self._point = replace(slot, tables=tables), point
            whole = origin.source.full_batch(origin.connection, _NO_HORIZON)
            yield replace(whole, high=point.lsn)

    # --- changes

    def _first_look(self, watermark: Watermark) -> PassOver | None:
        """Fix how far this run reads; remember at once where the tables are new."""
        if self._look is None:
            look = self._look = self.origin.changes.look(watermark, self._check_alive)
            self.origin.slot, self._is_new = look.origin, look.is_new
            row = self.origin.connection.execute("SELECT clock_timestamp()").fetchone()
            assert row is not None
            self._looked_at = row[0]
        # At once: of a partition that is empty now, all rows will be in the log.
        return _tables_changed(watermark, self._look.origin) if self._is_new else None

    def _next_changes(self, watermark: Watermark) -> Batch | PassOver | None:
        """Land what comes next, in whole transactions, up to a point that does not move."""
        assert self._look is not None
        upto, low = self._look.upto, watermark.value
        assert low is not None
        if lsn_value(low) >= lsn_value(upto):
            self._read_at = self._looked_at
            self._reached(low)
            return None
        self._check(watermark)
        self.transfer.report("reading", 0)
        read = self._read(low, upto)
        landed = self._landed = read.landed
        self._read_at = self._looked_at if read.to_the_end else None
        reach("changes.landed")
        if landed.changes == 0:
            return self._passed_over(low, upto if read.to_the_end else landed.high)
        kind = BatchKind.FULL if landed.truncated and not self._soft else BatchKind.CHANGES
        assert landed.high is not None
        return Batch(kind, low, landed.high, rows=landed.changes, is_last=read.to_the_end)

    def _passed_over(self, low: str, end: str | None) -> PassOver | None:
        """Nothing of the table changed: move on, or the server keeps its log for nothing."""
        assert end is not None
        if self._read_at is None or lsn_value(end) - lsn_value(low) >= _WORTH_BYTES:
            return PassOver(end)
        self._reached(low)
        return None

    def refuse_unlogged(self) -> None:
        """Stop at what is in no log, once all that the log has is loaded."""
        if self._look is None or self.transfer.limit_reached:
            return
        unlogged = (*self._look.unlogged, *self._gone)
        if unlogged:
            assert self.origin.slot is not None
            watermark = self.transfer.watermark()
            seen = replace(self.origin.slot, seen=self._look.tables)
            self.transfer.pass_over(watermark, _tables_changed(watermark, seen))
            raise self.origin.changes.unlogged(unlogged, repairs=True)

    def _read(self, after: str, upto: str) -> _Read:
        """Land the next transactions; those that this reader has behind it do not count."""
        most = self.origin.sync.batch_rows
        while True:
            peek = self._peek(upto, most)
            landed = self._land(peek, after, None)
            if landed.high is None and peek.was_cut and not landed.more:
                # The slot waits for a reader that is far behind, and gave what we have already.
                most *= _MORE
                continue
            return _Read(landed, not landed.more and not peek.was_cut)

    def _peek(self, upto: str | None, most: int | None) -> SlotPeek:
        log = self.origin.changes.log
        return SlotPeek(
            self.origin.connection,
            log.slot.name,
            log.publication.name,
            upto,
            most,
            self._check_alive,
        )

    def _land(self, peek: SlotPeek, after: str, upto: str | None) -> LandedChanges:
        log = self.origin.changes.log
        with (
            self._explained(),
            log.slot.held(self._check_alive),
            closing(iter(peek)) as messages,
        ):
            landed = land(
                messages,
                self.transfer.target,
                self.transfer.attempt.fence.attempt_id,
                slot=log.slot.name,
                relation=self.origin.source.table.relation,
                key=self.origin.source.key,
                columns=[column.name for column in self.origin.source.columns],
                after=after,
                upto=upto,
                batch_rows=self.origin.sync.batch_rows,
                soft=self._soft,
            )
        self._note_gone(landed)
        return landed

    def _note_gone(self, landed: LandedChanges) -> None:
        """Partitions that came and went since the last run leave what the log has of their rows.

        They are remembered with the load itself, so that no crash forgets them.
        """
        origin = self.origin.slot
        if origin is None or origin.tables is None:
            return
        known = origin.tables.by_oid()
        new = [(oid, name) for oid, name in landed.parts if oid not in known]
        now = read_tables(self.origin.connection, self.origin.source).tables.by_oid() if new else {}
        if gone := [(oid, name) for oid, name in new if oid not in now]:
            self.origin.slot = replace(origin, tables=origin.tables.with_uncopied(gone))
            self._gone += [f"partition {name} was attached and is gone" for _, name in gone]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A slot that was dropped or given up while it was read is told as such."""
        try:
            yield
        except (pg.UndefinedObject, pg.ObjectNotInPrerequisiteState) as error:
            self.origin.changes.check(self.transfer.watermark())
            # Before PostgreSQL 18 a publication must be older than what is decoded.
            raise SourceError(
                f"sync {self.origin.sync.name}: slot {self.origin.changes.log.slot.name} cannot be "
                f"read: {first_line(error)}",
                "run the other syncs of this source, so that their slot moves on, then this one",
            ) from None

    def _check(self, watermark: Watermark) -> None:
        assert self.origin.slot is not None
        found, _ = self.origin.changes.check(watermark)
        self.origin.slot = replace(
            found, tables=self.origin.slot.tables, seen=self.origin.slot.seen
        )


def _tables_changed(watermark: Watermark, slot: SlotOrigin) -> PassOver:
    """Remember what the tables are, where the sync stands."""
    assert watermark.value is not None
    return PassOver(
        watermark.value,
        declaration={**(watermark.declaration or {}), "cdc": slot.to_json()},
        reason="partitions or files of the source changed",
    )


PlanTarget = Callable[[Connection, Sync, Shape | None, Watermark, LoadedShape | None], TargetPlan]
_BECAUSE = "every transaction is read from the source's own log, in the order of its commits"


def plan_cdc_sync(sessions: ReadSessions, sync: Sync, plan_target: PlanTarget) -> SyncPlan:
    """Plan one sync; raises what a run would raise before it writes anything."""
    context = sessions.context
    connection = sessions.source(sync.source.connection)
    source = resolve_source(connection, sync)
    target = sessions.target(sync.target.connection)
    watermark = Watermarks(context.ledger(sync.target.connection)).get(
        target, sync.pipeline, str(sync.target.relation)
    )
    control = sessions.control()
    changes = None
    if control is not None:
        log = ChangeLog.of(sync, source, connection, context.plane.identity(control))
        changes = SlotLifecycle(context, sync, source, log)
        changes.refuse_changed(watermark)
    state = None if changes is None else changes.log.slot.look()
    copies = watermark.value is None or watermark.is_refreshing
    usable = changes is not None and changes.log.is_usable(state)
    slots = (0 if usable else 1) + 1 if copies else 0
    refuse_obstacles(sync, obstacles(connection, sync, source, slots=slots))
    refuse_changed_target(context, control, sync)
    refuse_other_plane(sessions, sync)
    if not copies and changes is not None:
        changes.refuse_unlogged(watermark)
    lake = LakePlan.read(context, sync) if context.is_lake(sync.target.connection) else None
    shape: Shape | None = None
    if sync.transform is None:
        shape = passthrough_shape(target, source) if lake is None else lake_shape(source)
    loaded = LoadedShape.recorded(watermark.declaration, source.table.column_names)
    target_plan = (
        plan_target(target, sync, shape, watermark, loaded)
        if lake is None
        else lake.target(shape, watermark)
    )
    with context.reading(connection, source):
        rows, exact = 0, False
        if copies:
            refuse_duplicates(source, connection, sync.name)
            rows, exact = count_rows(connection, source, source.condition(Batch(BatchKind.FULL)))
    server = read_server(connection)
    behind = 0
    batch: Batch | None = Batch(BatchKind.FULL, None, server.lsn, rows=rows)
    if not copies:
        assert watermark.value is not None
        behind = max(0, lsn_value(server.lsn) - lsn_value(watermark.value))
        batch = Batch(BatchKind.CHANGES, watermark.value, server.lsn) if behind else None
    warnings = _warnings(sync, source, watermark, target_plan)
    if state is not None:
        remark = slot_remark(context.settings.cdc, state, ())
        warnings += [] if remark is None else [remark.text]
    if lake is not None and shape is not None:
        warnings += text_columns(source)
    return SyncPlan(
        sync=sync.name,
        source=sync.source_name,
        target=str(sync.target),
        mode=sync.mode.value,
        transformed=sync.transform is not None,
        key=KeyPlan(
            source.key,
            bool(sync.key) and "key" not in sync.proposed,
            source.table.proves_unique(source.key),
            "declared" if sync.key and "key" not in sync.proposed else "primary key",
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
        rows=rows,
        rows_are_exact=exact,
        batches=1 if batch is not None else 0,
        next_batch=batch,
        partitions=sync.partitions or 1,
        statements=(),
        publish=None,
        target_table=target_plan,
        lock=read_lock(sessions, sync),
        expected_seconds=None,
        warnings=tuple(warnings),
        notes=sync.notes,
        group=sync.group,
        table=sync.name.removeprefix(f"{sync.group}.") if sync.group else None,
        source_rows=max(source.table.estimated_rows, rows),
        slot=SlotPlan(
            slot=None if changes is None else changes.log.slot.name,
            publication=None if changes is None else changes.log.publication.name,
            exists=usable,
            copies=copies,
            behind_bytes=behind,
            retained_bytes=None if state is None else state.retained_bytes,
            deletes=sync.deletes,
        ),
    )


def _warnings(
    sync: Sync, source: PostgresSource, watermark: Watermark, target: TargetPlan
) -> list[str]:
    found: list[str] = []
    if source.table.kind is RelationKind.PARTITIONED:
        found.append(
            f"{source.table.relation} is partitioned: what happens to a partition as a whole "
            "(TRUNCATE, DETACH, DROP, ATTACH with rows) is in no log; the run after one stops and "
            "names the way on"
        )
    if target.rows_present and watermark.version == 0:
        found.append(f"{sync.target} holds rows already; what the source does not have leaves it")
    if watermark.is_refreshing:
        found.append(FINISHES_REFRESH)
    return found + list(target.notes)
