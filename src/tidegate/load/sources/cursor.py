"""One attempt at a sync: batch after batch from the watermark up to the horizon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidegate.config.sync import Duplicates, Mode, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.errors import DeclarationError
from tidegate.core.failpoints import reach
from tidegate.core.watermark import Horizon, NullPolicy, Watermark
from tidegate.load.context import Context
from tidegate.load.declaration_changes import (
    declaration,
    horizon_remarks,
    is_same_server,
    refuse_changed_declaration,
)
from tidegate.load.engine import FINISHES_REFRESH, Attempt, Course, Load, Prepare, SyncOutcome
from tidegate.load.inspection import Observations
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open
from tidegate.load.sources.watermark_conditions import check_standing, rows_ahead
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.target import Target
from tidegate.postgres.catalog import database_identity, read_server
from tidegate.postgres.connection import Connection, Snapshot
from tidegate.postgres.server_identity import Server


@dataclass(slots=True)
class SyncWork:
    """The work of one attempt; `step` is told of every finished load."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    destination: Target
    attempt: Attempt
    memory: Observations
    known_fingerprints: dict[str, Any]
    full_refresh: bool = False
    max_batches: int | None = None
    step: Callable[[LoadResult], None] = lambda _: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    _finishing: bool = False
    _server: Server | None = None

    @property
    def _course(self) -> Course:
        return Course(self.sync, self.destination, self.attempt, self.outcome, self.max_batches)

    def run(self) -> SyncOutcome:
        """Load until nothing is left below the horizon, or the limit of batches is reached."""
        before = self._watermark()
        check_first_key(self.sync, self.source, self.connection, before)
        if self.source.null_policy is NullPolicy.RAISE:
            self.source.null_batch(self.connection)
        watermark = self._begin()
        refuse_changed_declaration(watermark, self.source, self.sync)
        self.outcome.remarks += check_standing(
            self.context, self.connection, self.source, watermark, self.sync
        )
        if not is_same_server(before, read_server(self.connection)):
            # What was seen of another's values says nothing of those that this one will give out.
            self.memory.forget()
        if self.source.cursor is not None:
            self.destination.check_present(watermark)
        for plan_batch in self._phases(watermark):
            self._course.follow(partial(self._load_next, plan_batch))
        self.outcome.watermark = self._watermark()
        check_open(self.connection, self.source)
        self.outcome.remarks += horizon_remarks(
            self.connection, self.source.cursor, self.outcome.watermark, self.outcome.horizon
        )
        self.outcome.remarks += rows_ahead(self.connection, self.source)
        return self.outcome

    def _phases(self, start: Watermark) -> Iterator[Callable[[Watermark, Horizon], Batch | None]]:
        """Late rows first, then new ones, then those without a cursor."""
        if self.attempt.stored_plan is not None:
            yield self._stored_batch()
        if self.source.cursor is None:
            yield self._once(BatchKind.FULL, self._whole_batch)
            return
        if self.full_refresh:
            yield self._once(
                BatchKind.FULL, lambda w, h: self.source.full_batch(self.connection, h)
            )
        elif start.value is not None and self.source.lookback is not None:
            yield self._lookback_batches(start.value)
        yield lambda watermark, horizon: self.source.next_batch(self.connection, watermark, horizon)
        if not self.full_refresh and self.source.null_policy is NullPolicy.INCLUDE:
            yield self._once(BatchKind.NULLS, self._null_batch)

    def _begin(self) -> Watermark:
        """A full refresh starts by forgetting how far the sync had got, under a new generation.

        One that was not finished is finished now, whether or not it was asked for again.
        """
        found = self._watermark()
        if not self.full_refresh and found.is_refreshing:
            self.full_refresh = self._finishing = True
            return found
        if not self.full_refresh or self.attempt.stored_plan is not None:
            return found
        return self._course.begin_refresh(self._declare, self.source.cursor_type)

    def _declare(self, columns: Any) -> dict[str, Any]:
        found = declaration(self.sync, self.source, columns)
        if self.source.cursor is None:
            return found
        return {**found, "server": (self._server or read_server(self.connection)).to_json()}

    def _load_next(self, plan_batch: Callable[[Watermark, Horizon], Batch | None]) -> bool:
        """Plan and run one load; False when this phase has nothing more."""
        self.attempt.check_alive()
        check_open(self.connection, self.source)
        if self.outcome.horizon is None:
            # Fixed for the whole run, which would never end where writers are quicker than it.
            self.outcome.horizon = read_horizon(self.connection, self.source.cursor, self.memory)
        watermark = self._watermark()
        with self.context.reading(self.connection, self.source) as snapshot:
            batch = plan_batch(watermark, self.outcome.horizon)
            if batch is None:
                return False
            plan = self._plan(batch, watermark)
            self.attempt.store_plan(plan.to_json() | {"final": self._is_final(batch)})
            reach("batch.planned")
            self._course.report("staging", batch.rows)
            load = Load(
                sync=self.sync,
                destination=self.destination,
                attempt=self.attempt,
                source_names=self.source.table.column_names,
                cursor_type=self.source.cursor_type,
                declare=self._declare,
                staged=lambda rows: self._course.report("publishing", rows),
            )
            prepared = load.stage(self._stage(snapshot, batch), watermark)
        # The source is free again while the rows are checked and published.
        result = load.publish(prepared, plan, watermark)
        if result.already:
            self._course.check_moved(plan)
        if self._finishing and batch.kind is BatchKind.FULL:
            result = replace(result, notes=(*result.notes, FINISHES_REFRESH))
        if batch.kind is not BatchKind.LOOKBACK or batch.high == watermark.value:
            # Of a lookback in pieces only the last one makes the whole of it known.
            for kind, known in self.outcome.fingerprints.items():
                if kind == batch.kind.value:
                    known.update(version=plan.version + 1, update_id=plan.update_id)
        self.outcome.loads.append(result)
        self.step(result)
        return not batch.is_last

    def _stage(self, snapshot: Snapshot, batch: Batch) -> Callable[[Prepare], Staged]:
        reading = Reading(self.context, self.sync, self.source, self.connection, snapshot, batch)

        def stage(prepare: Prepare) -> Staged:
            return stage_batch(
                reading,
                self.destination,
                attempt_id=self.attempt.fence.attempt_id,
                prepare=prepare,
            )

        return stage

    def _is_final(self, batch: Batch) -> bool:
        """Whether the job is done once this batch is in, as far as can be told beforehand."""
        if batch.kind is BatchKind.RANGE:
            return batch.is_last and self.source.null_policy is not NullPolicy.INCLUDE
        return batch.kind is BatchKind.NULLS or self.source.cursor is None

    def _plan(self, batch: Batch, watermark: Watermark) -> LoadPlan:
        self._server = read_server(self.connection)
        identity = f"{database_identity(self.connection)}/{self.sync.source.relation}"
        return self._course.plan(identity, batch, watermark)

    def _stored_batch(self) -> Callable[[Watermark, Horizon], Batch | None]:
        """The batch an earlier attempt at this job was at, if it is still to be done."""
        take = self._course.take_stored(self._plan)
        return lambda watermark, _: take(watermark)

    def _once(
        self, kind: BatchKind, plan_batch: Callable[[Watermark, Horizon], Batch | None]
    ) -> Callable[[Watermark, Horizon], Batch | None]:
        """A phase of a single batch, unless the stored plan was that batch already."""

        def batch(watermark: Watermark, horizon: Horizon) -> Batch | None:
            if any(load.batch.kind is kind for load in self.outcome.loads):
                return None
            return plan_batch(watermark, horizon)

        return batch

    def _lookback_batches(self, start: str) -> Callable[[Watermark, Horizon], Batch | None]:
        """(W - lookback, W] in bounded pieces; skipped when it is as it was when last loaded."""
        skip = False

        def batch(watermark: Watermark, _: Horizon) -> Batch | None:
            nonlocal skip
            loaded = [one.batch for one in self.outcome.loads]
            pieces = [one.high for one in loaded if one.kind is BatchKind.LOOKBACK]
            reached = pieces[-1] if pieces else None
            if skip or reached == start:
                return None
            found = self.source.lookback_batch(self.connection, start, reached)
            if found is None:
                return None
            if reached is None:
                whole = Batch(BatchKind.LOOKBACK, found.low, start)
                skip = self._unchanged(whole, watermark)
                if skip:
                    return None
            return found

        return batch

    def _whole_batch(self, watermark: Watermark, horizon: Horizon) -> Batch | None:
        """The whole source, unless it is as it was when it was last loaded."""
        found = self.source.full_batch(self.connection, horizon)
        unchanged = self._unchanged(found, watermark)
        if not unchanged or self.full_refresh:
            return found
        # Somebody may have emptied or dropped the target meanwhile.
        return None if found.rows == 0 or self.destination.holds_rows() else found

    def _null_batch(self, watermark: Watermark, _: Horizon) -> Batch | None:
        found = self.source.null_batch(self.connection)
        if found is None or self._unchanged(found, watermark):
            return None
        return found

    def _unchanged(self, batch: Batch, watermark: Watermark) -> bool:
        """Whether these rows were loaded just so by the last load of this pipeline."""
        kind = batch.kind.value
        now = self.source.fingerprint(self.connection, batch)
        known = self.known_fingerprints.get(kind, {})
        found = {
            "fingerprint": now,
            "version": watermark.version,
            "update_id": watermark.update_id,
        }
        self.outcome.fingerprints[kind] = found
        return bool(known == found)

    def _watermark(self) -> Watermark:
        return self.destination.watermark(self.sync.pipeline)


def check_first_key(
    sync: Sync, source: PostgresSource, connection: Connection, watermark: Watermark
) -> None:
    """On the first load, look once at the whole key unless an index vouches for it."""
    if sync.transform is not None or tolerates_duplicates(sync):
        return
    if watermark.version == 0:
        refuse_duplicates(source, connection, sync.name)


def tolerates_duplicates(sync: Sync) -> bool:
    """Whether rows that share a key do no harm."""
    return sync.duplicates is Duplicates.NEWEST or sync.mode is Mode.APPEND


def refuse_duplicates(source: PostgresSource, connection: Connection, sync_name: str) -> None:
    """Refuse a key that does not identify a row of the source."""
    duplicate = source.find_duplicate_key(connection)
    if duplicate is not None:
        raise DeclarationError(
            f"sync {sync_name}: the key ({', '.join(source.key)}) of {source.table.relation} is "
            f"not unique: one occurs {duplicate[1]} times",
            'choose a unique key, or set duplicates = "newest" to keep the newest row',
            detail=f"the key {duplicate[0]} occurs {duplicate[1]} times",
        )
