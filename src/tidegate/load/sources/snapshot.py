"""Changes = "snapshot"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.failpoints import reach
from tidegate.core.watermark import Guarantee, Horizon, Watermark
from tidegate.load.context import Context
from tidegate.load.declaration_changes import declaration, refuse_changed_declaration
from tidegate.load.engine import FINISHES_REFRESH, Attempt, Course, Load, Prepare, SyncOutcome
from tidegate.load.sources.cursor import check_first_key
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import check_open, count_rows
from tidegate.load.sources.watermark_conditions import (
    check_standing,
    next_batch_start,
    pass_record,
    pending_condition,
    refuse_restored,
)
from tidegate.load.sources.xmin import FAR, SourcePosition, loaded_position
from tidegate.load.stage import Reading, Staged, stage_batch
from tidegate.load.target import Target
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection, Snapshot

Planned = tuple[Batch, SourcePosition]
PlanBatch = Callable[[Watermark, SourcePosition], Planned | None]


@dataclass(slots=True)
class SnapshotWork:
    """The work of one attempt; `step` is told of every finished load."""

    context: Context
    sync: Sync
    source: PostgresSource
    connection: Connection
    destination: Target
    attempt: Attempt
    known_fingerprints: dict[str, Any]
    full_refresh: bool = False
    max_batches: int | None = None
    step: Callable[[LoadResult], None] = lambda _: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    _finishing: bool = False

    @property
    def _course(self) -> Course:
        return Course(self.sync, self.destination, self.attempt, self.outcome, self.max_batches)

    def run(self) -> SyncOutcome:
        """Finish the pass that was begun, then make one of what has been written since."""
        check_first_key(self.sync, self.source, self.connection, self._course.watermark())
        watermark = self._begin()
        refuse_changed_declaration(watermark, self.source, self.sync)
        check_standing(self.context, self.connection, self.source, watermark, self.sync)
        self.destination.check_present(watermark)
        for plan_batch in self._phases():
            self._course.follow(partial(self._load_next, plan_batch))
        self.outcome.watermark = self._course.watermark()
        return self.outcome

    def _phases(self) -> Iterator[PlanBatch]:
        if self.attempt.stored_plan is not None:
            yield self._stored_batch(self.attempt.stored_plan)
        if self.full_refresh:
            yield self._whole_batch
        if self._course.watermark().position is not None:
            yield self._next_batch
        yield self._next_batch

    def _begin(self) -> Watermark:
        """As for any sync, a full refresh that was not finished is finished now."""
        found = self._course.watermark()
        if not self.full_refresh and found.is_refreshing:
            self.full_refresh = self._finishing = True
            return found
        if not self.full_refresh or self.attempt.stored_plan is not None:
            return found
        return self._course.begin_refresh(
            lambda columns: declaration(self.sync, self.source, columns), self.source.cursor_type
        )

    def _load_next(self, plan_batch: PlanBatch) -> bool:
        """Plan and run one load; False when this phase has nothing more."""
        self.attempt.check_alive()
        check_open(self.connection, self.source)
        watermark = self._course.watermark()
        with self.context.reading(self.connection, self.source) as snapshot:
            planned = plan_batch(watermark, self.source.standing(self.connection))
            if planned is None:
                return False
            batch, began = planned
            plan = self._plan(batch, watermark)
            self.attempt.store_plan(
                plan.to_json() | {"final": batch.is_last, "standing": began.to_json()}
            )
            reach("batch.planned")
            self._course.report("staging", batch.rows)
            load = Load(
                sync=self.sync,
                destination=self.destination,
                attempt=self.attempt,
                source_names=self.source.table.column_names,
                cursor_type=self.source.cursor_type,
                declare=lambda columns: {
                    **declaration(self.sync, self.source, columns),
                    **pass_record(batch, began, watermark),
                },
                staged=lambda rows: self._course.report("publishing", rows),
            )
            prepared = load.stage(self._stage(snapshot, batch), watermark)
            if batch.is_last and batch.key_low is None:
                # Of a pass in pieces, what was written behind its back is not loaded yet.
                self._remember(began, plan.version + 1, plan.update_id)
        result = load.publish(prepared, plan, watermark)
        if result.already:
            self._course.check_moved(plan)
        if self._finishing and batch.kind is BatchKind.FULL:
            result = replace(result, notes=(*result.notes, FINISHES_REFRESH))
        self.outcome.loads.append(result)
        self.step(result)
        return not batch.is_last

    def _stage(self, snapshot: Snapshot, batch: Batch) -> Callable[[Prepare], Staged]:
        reading = Reading(self.context, self.sync, self.source, self.connection, snapshot, batch)
        attempt_id = self.attempt.fence.attempt_id
        return lambda prepare: stage_batch(
            reading, self.destination, attempt_id=attempt_id, prepare=prepare
        )

    def _plan(self, batch: Batch, watermark: Watermark) -> LoadPlan:
        identity = f"{database_identity(self.connection)}/{self.sync.source.relation}"
        return self._course.plan(identity, batch, watermark)

    def _stored_batch(self, stored: dict[str, Any]) -> PlanBatch:
        """The batch an earlier attempt at this job was at, if it is still to be done."""
        take = self._course.take_stored(self._plan)
        began = SourcePosition.from_json(stored["standing"])

        def batch(watermark: Watermark, _: SourcePosition) -> Planned | None:
            found = take(watermark)
            return None if found is None else (found, began)

        return batch

    def _whole_batch(self, _: Watermark, now: SourcePosition) -> Planned | None:
        """Everything, once, in one snapshot."""
        if any(load.batch.kind is BatchKind.FULL for load in self.outcome.loads):
            return None
        whole = Batch(BatchKind.FULL, None, now.xmin, is_last=True)
        return replace(whole, rows=self.source.count(self.connection, whole)), now

    def _next_batch(self, watermark: Watermark, now: SourcePosition) -> Planned | None:
        start, began = next_batch_start(self.source, watermark, now)
        batch = self.source.written_batch(self.connection, start)
        if batch is not None and not self._is_loaded(batch, watermark):
            return batch, began
        far = watermark.value is not None and int(now.xmax) - int(watermark.value) > FAR
        if far or (batch is not None and watermark.value != now.xmin):
            # Lest the same rows are looked at again, or ids come round before anything changes.
            columns = (watermark.declaration or {}).get("columns")
            self._course.pass_over(
                watermark,
                now.xmin,
                self.source.cursor_type,
                {
                    **declaration(self.sync, self.source, columns),
                    "standing": now.to_json(),
                },
            )
            self._remember(now, watermark.version + 1, watermark.update_id)
        return None

    def _is_loaded(self, batch: Batch, watermark: Watermark) -> bool:
        """Whether the last load took these very rows, though a transaction was open then that
        may have written others."""
        known = self.known_fingerprints.get(BatchKind.WRITTEN.value, {})
        loaded = (watermark.version, watermark.update_id)
        if not batch.closes_tie or (known.get("version"), known.get("update_id")) != loaded:
            return False
        self.outcome.fingerprints[BatchKind.WRITTEN.value] = known
        return bool(known["fingerprint"] == self.source.fingerprint(self.connection, batch))

    def _remember(self, now: SourcePosition, version: int, update_id: str | None) -> None:
        """Keep what of the loaded rows the next pass will find again."""
        if now.is_quiet:
            return
        again = Batch(BatchKind.WRITTEN, now.xmin, reached=now.cursor)
        self.outcome.fingerprints[BatchKind.WRITTEN.value] = {
            "fingerprint": self.source.fingerprint(self.connection, again),
            "version": version,
            "update_id": update_id,
        }


_UNSEEN = "deleted rows and changed keys are not seen"
# Looking through more than this with every run deserves a second thought.
_MANY_ROWS = 10_000_000


def read_promise(
    connection: Connection, source: PostgresSource, watermark: Watermark, sync: Sync
) -> Horizon:
    """Which promise holds; refuses a source that is not as it was."""
    now = source.standing(connection)
    refuse_restored(watermark, now, sync)
    found = "rows are found by the transaction that wrote them"
    written = source.written
    if written is None or written.cursor is None:
        because = f"{found}, whoever stamps them and however late it ends; {_UNSEEN}"
        return Horizon(now.xmin, Guarantee.EXACT, because)
    before = loaded_position(watermark)
    reached = now.cursor if before is None else before.cursor or now.cursor
    because = (
        f"{found}, bounded by the lookback: one whose {written.cursor.name} lies more than "
        f"{sync.lookback} below the highest that was loaded ({reached or 'none yet'}) is not "
        f"looked at, whenever it was written; {_UNSEEN}"
    )
    return Horizon(now.xmin, Guarantee.BOUNDED, because)


def next_phase(
    connection: Connection, source: PostgresSource, watermark: Watermark
) -> tuple[Batch, int, bool] | None:
    """The next batch, and how many rows are to be loaded in all: counted, or else estimated."""
    now: SourcePosition = source.standing(connection)
    start, _ = next_batch_start(source, watermark, now)
    batch = source.written_batch(connection, start)
    if batch is None:
        return None
    if batch.is_last:
        return batch, batch.rows, True
    rows, exact = count_rows(connection, source, pending_condition(source, watermark, nulls=True))
    return batch, max(rows, batch.rows), exact


def snapshot_warnings(sync: Sync, source: PostgresSource, size: int) -> list[str]:
    """What a person should know before the first run."""
    found: list[str] = []
    relation = source.table.relation
    if source.written is None or source.written.cursor is None:
        if size > _MANY_ROWS:
            found.append(
                f"every run looks through all of about {size:,} rows of {relation}; a cursor with "
                "a lookback would lead by an index to those that can have changed"
            )
    elif not source.reads_by_index:
        found.append(
            f"no index of {relation} leads with {source.written.cursor.name}, so every run looks "
            "through the whole table"
        )
    if sync.transform is not None:
        found.append("the target's columns are checked when the transformation runs")
    return found
