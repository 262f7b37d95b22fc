"""Changes = "cdc": first copy, then transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from psycopg import errors as pg

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.errors import SourceError
from tidegate.core.failpoints import reach
from tidegate.core.relation import RelationKind
from tidegate.core.shape import LoadedShape, Shape
from tidegate.core.watermark import Guarantee, Horizon, Watermark, lsn_value
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_target
from tidegate.load.engine import FINISHES_REFRESH, Attempt, Course, Load, Prepare, SyncOutcome
from tidegate.load.inspection import ReadSessions, read_lock, refuse_other_plane
from tidegate.load.plan import KeyPlan, LakePlan, SlotPlan, SyncPlan, TargetPlan, text_columns
from tidegate.load.sources.cdc.first_copy import copy_point, stage_first_copy
from tidegate.load.sources.cdc.landing import LandedChanges, is_whole, land
from tidegate.load.sources.cdc.publication import ChangeLog
from tidegate.load.sources.cdc.slot import SlotOrigin, SlotPeek
from tidegate.load.sources.cdc.slot_lifecycle import SlotLifecycle, obstacles, refuse_obstacles
from tidegate.load.sources.cdc.slot_registry import slot_remark
from tidegate.load.sources.cdc.staging import stage_landed
from tidegate.load.sources.cdc.tables import read_tables
from tidegate.load.sources.cursor import refuse_duplicates
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open, count_rows
from tidegate.load.sources.resolve import lake_shape, passthrough_shape, resolve_source
from tidegate.load.stage import Reading, Staged
from tidegate.load.target import Target
from tidegate.postgres.catalog import database_identity, read_server
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
class CdcWork:
    """The work of one attempt; `step` is told of every finished load."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    destination: Target
    attempt: Attempt
    full_refresh: bool = False
    max_batches: int | None = None
    step: Callable[[LoadResult], None] = lambda _: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    _finishing: bool = False
    _changes: SlotLifecycle = field(init=False)
    _origin: SlotOrigin | None = None
    _gone: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changes = SlotLifecycle.of(self.context, self.sync, self.source, self.connection)

    @property
    def _course(self) -> Course:
        return Course(self.sync, self.destination, self.attempt, self.outcome, self.max_batches)

    @property
    def _soft(self) -> bool:
        return self.sync.is_soft

    def run(self) -> SyncOutcome:
        """Copy the table if that was never done, then load what changed up to now."""
        watermark = self._begin()
        self._changes.refuse_changed(watermark)
        self.destination.check_present(watermark)
        if self.full_refresh or watermark.value is None:
            self._course.follow(self._copy)
        if not self._course.limit_reached:
            self._follow_changes()
        self.outcome.watermark = self._course.watermark()
        return self.outcome

    def _begin(self) -> Watermark:
        """As for any sync, a full refresh that was not finished is finished now."""
        found = self._course.watermark()
        if not self.full_refresh and found.is_refreshing:
            self.full_refresh = self._finishing = True
            return found
        if not self.full_refresh:
            return found
        stored = self.attempt.stored_plan
        if stored is not None and LoadPlan.from_json(stored).generation == found.generation:
            # An earlier attempt at this job has begun it; what it copied may even be in.
            self.full_refresh = found.is_refreshing
            return found
        return self._course.begin_refresh(self._declare, None)

    def _declare(self, columns: Any) -> dict[str, Any]:
        return self._changes.declaration(self._origin, columns)

    # --- the first copy

    def _copy(self) -> bool:
        """Everything as it was at one point of the log, after which the slot has it all."""
        self.attempt.check_alive()
        timeout = self.context.settings.cdc.start_timeout_seconds
        self._origin = self._changes.start(timeout, self.attempt.check_alive)
        name = self.sync.source.connection
        watermark = self._course.watermark()
        if watermark.version == 0:
            refuse_duplicates(self.source, self.connection, self.sync.name)
        with copy_point(
            self.context.databases.conninfo(name),
            label(name),
            self.connection,
            self.source,
            timeout_seconds=timeout,
            lock_seconds=self.context.settings.safety.lock_timeout_seconds,
        ) as point:
            # In the copy's own snapshot: what comes later is noticed by the next run.
            tables = read_tables(self.connection, self.source).tables
            self._origin = replace(self._origin, tables=tables)
            whole = self.source.full_batch(self.connection, _NO_HORIZON)
            batch = replace(whole, high=point.lsn)
            reading = Reading(
                self.context, self.sync, self.source, self.connection, point.snapshot, batch
            )
            plan, load = self._begin_load(batch, watermark)
            prepared = load.stage(
                partial(
                    stage_first_copy,
                    reading,
                    self.destination,
                    self.attempt.fence.attempt_id,
                    self._soft,
                ),
                watermark,
            )
        result = self._ended(plan, load.publish(prepared, plan, watermark))
        self._done(
            replace(result, notes=(*result.notes, FINISHES_REFRESH)) if self._finishing else result
        )
        check_open(self.connection, self.source)
        self._changes.reached(point.lsn, None, self.attempt.check_alive)
        return False

    # --- changes

    def _follow_changes(self) -> None:
        """What has been committed up to now, in whole transactions; then what is in no log."""
        watermark = self._course.watermark()
        look = self._changes.look(watermark, self.attempt.check_alive)
        self._origin = look.origin
        if look.is_new:
            # At once: of a partition that is empty now, all rows will be in the log.
            watermark = self._remember(watermark, look.origin)
        row = self.connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        take = self._course.take_stored(self._plan)
        stored = take(watermark)
        if stored is not None and (stored.kind is BatchKind.CHANGES or stored.low is not None):
            self._load_batch(stored, watermark, None, None)
        self._course.follow(partial(self._load_next, look.upto, now))
        unlogged = (*look.unlogged, *self._gone)
        if unlogged and not self._course.limit_reached:
            self._remember(self._course.watermark(), replace(self._origin, seen=look.tables))
            raise self._changes.unlogged(unlogged, repairs=True)

    def _remember(self, watermark: Watermark, origin: SlotOrigin) -> Watermark:
        """Remember what the tables are, where the sync stands."""
        assert watermark.value is not None
        declared = {**(watermark.declaration or {}), "cdc": origin.to_json()}
        self._course.pass_over(
            watermark,
            watermark.value,
            declaration=declared,
            reason="partitions or files of the source changed",
        )
        return self._course.watermark()

    def _load_next(self, upto: str, now: datetime) -> bool:
        """Land and load what comes next, up to a point that does not move meanwhile."""
        self.attempt.check_alive()
        watermark = self._course.watermark()
        assert watermark.value is not None
        if lsn_value(watermark.value) >= lsn_value(upto):
            self._changes.reached(watermark.value, now, self.attempt.check_alive)
            return False
        self._check(watermark)
        self._course.report("reading", 0)
        read = self._read(watermark.value, upto)
        landed = read.landed
        reach("changes.landed")
        if landed.changes == 0:
            return self._pass_over(watermark, read, upto, now)
        assert landed.high is not None
        kind = BatchKind.FULL if landed.truncated and not self._soft else BatchKind.CHANGES
        batch = Batch(
            kind, watermark.value, landed.high, rows=landed.changes, is_last=read.to_the_end
        )
        self._load_batch(batch, watermark, landed, now if read.to_the_end else None)
        return not read.to_the_end

    def _pass_over(self, watermark: Watermark, read: _Read, upto: str, now: datetime) -> bool:
        """Nothing of the table changed: move on, or the server keeps its log for nothing."""
        end = upto if read.to_the_end else read.landed.high
        assert end is not None
        assert watermark.value is not None
        far = lsn_value(end) - lsn_value(watermark.value) >= _WORTH_BYTES
        if far or not read.to_the_end:
            self._course.pass_over(watermark, end)
        else:
            end = watermark.value
        self._changes.reached(end, now if read.to_the_end else None, self.attempt.check_alive)
        return not read.to_the_end

    def _load_batch(
        self,
        batch: Batch,
        watermark: Watermark,
        landed: LandedChanges | None,
        read_at: datetime | None,
    ) -> None:
        result = self._load(batch, watermark, self._stage(batch, landed))
        self._done(result)
        assert batch.high is not None
        self._changes.reached(batch.high, read_at, self.attempt.check_alive)

    def _stage(self, batch: Batch, landed: LandedChanges | None) -> Callable[[Prepare], Staged]:
        attempt_id = self.attempt.fence.attempt_id
        assert batch.low is not None
        low = batch.low

        def stage(prepare: Prepare) -> Staged:
            nonlocal landed
            found, landed = landed, None
            if found is None or not is_whole(found, self.destination, attempt_id):
                # Of an earlier attempt, or lost in a crash: decoded once more, to the same end.
                found = self._land(self._peek(batch.high, None), low, batch.high)
            return stage_landed(
                found,
                self.destination,
                context=self.context,
                sync=self.sync,
                source=self.source,
                connection=self.connection,
                batch=batch,
                attempt_id=attempt_id,
                prepare=prepare,
                soft=self._soft,
            )

        return stage

    def _read(self, after: str, upto: str) -> _Read:
        """Land the next transactions; those that this reader has behind it do not count."""
        most = self.sync.batch_rows
        while True:
            peek = self._peek(upto, most)
            landed = self._land(peek, after, None)
            if landed.high is None and peek.was_cut and not landed.more:
                # The slot waits for a reader that is far behind, and gave what we have already.
                most *= _MORE
                continue
            return _Read(landed, not landed.more and not peek.was_cut)

    def _peek(self, upto: str | None, most: int | None) -> SlotPeek:
        log = self._changes.log
        return SlotPeek(
            self.connection,
            log.slot.name,
            log.publication.name,
            upto,
            most,
            self.attempt.check_alive,
        )

    def _land(self, peek: SlotPeek, after: str, upto: str | None) -> LandedChanges:
        log = self._changes.log
        with (
            self._explained(),
            log.slot.held(self.attempt.check_alive),
            closing(iter(peek)) as messages,
        ):
            landed = land(
                messages,
                self.destination,
                self.attempt.fence.attempt_id,
                slot=log.slot.name,
                relation=self.source.table.relation,
                key=self.source.key,
                columns=[column.name for column in self.source.columns],
                after=after,
                upto=upto,
                batch_rows=self.sync.batch_rows,
                soft=self._soft,
            )
        self._note_gone(landed)
        return landed

    def _note_gone(self, landed: LandedChanges) -> None:
        """Partitions that came and went since the last run leave what the log has of their rows.

        They are remembered with the load itself, so that no crash forgets them.
        """
        origin = self._origin
        if origin is None or origin.tables is None:
            return
        known = origin.tables.by_oid()
        new = [(oid, name) for oid, name in landed.parts if oid not in known]
        now = read_tables(self.connection, self.source).tables.by_oid() if new else {}
        if gone := [(oid, name) for oid, name in new if oid not in now]:
            self._origin = replace(origin, tables=origin.tables.with_uncopied(gone))
            self._gone += [f"partition {name} was attached and is gone" for _, name in gone]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A slot that was dropped or given up while it was read is told as such."""
        try:
            yield
        except (pg.UndefinedObject, pg.ObjectNotInPrerequisiteState) as error:
            self._changes.check(self._course.watermark())
            # Before PostgreSQL 18 a publication must be older than what is decoded.
            raise SourceError(
                f"sync {self.sync.name}: slot {self._changes.log.slot.name} cannot be read: "
                f"{first_line(error)}",
                "run the other syncs of this source, so that their slot moves on, then this one",
            ) from None

    def _check(self, watermark: Watermark) -> None:
        assert self._origin is not None
        found, _ = self._changes.check(watermark)
        self._origin = replace(found, tables=self._origin.tables, seen=self._origin.seen)

    # --- a load

    def _load(
        self, batch: Batch, watermark: Watermark, stage: Callable[[Prepare], Staged]
    ) -> LoadResult:
        plan, load = self._begin_load(batch, watermark)
        return self._ended(plan, load.run(stage, plan, watermark))

    def _begin_load(self, batch: Batch, watermark: Watermark) -> tuple[LoadPlan, Load]:
        plan = self._plan(batch, watermark)
        self.attempt.store_plan(plan.to_json() | {"final": batch.is_last})
        reach("batch.planned")
        self._course.report("staging", batch.rows)
        return plan, Load(
            sync=self.sync,
            destination=self.destination,
            attempt=self.attempt,
            source_names=self.source.table.column_names,
            cursor_type=None,
            declare=self._declare,
            # A TRUNCATE in the log is what the source did; a copy only shows what it has now.
            rules=self.sync.rules if batch.low is None else replace(self.sync.rules, removal=None),
            staged=lambda rows: self._course.report("publishing", rows),
        )

    def _ended(self, plan: LoadPlan, result: LoadResult) -> LoadResult:
        if result.already:
            self._course.check_moved(plan)
        return result

    def _done(self, result: LoadResult) -> None:
        self.outcome.loads.append(result)
        self.step(result)

    def _plan(self, batch: Batch, watermark: Watermark) -> LoadPlan:
        identity = f"{database_identity(self.connection)}/{self.sync.source.relation}"
        return self._course.plan(identity, batch, watermark)


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
