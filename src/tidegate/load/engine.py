"""The engine: plan, stage, check, publish, batch after batch, whatever the source is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tidegate.config.sync import Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult, Published
from tidegate.core.errors import LoadError, StagingLost, WatermarkMoved
from tidegate.core.failpoints import reach
from tidegate.core.shape import Shape, record_columns
from tidegate.core.watermark import Horizon, Watermark
from tidegate.ledger.fences import Fence
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.source import PassOver, Scan, Source
from tidegate.load.sources.xmin import position_after
from tidegate.load.stage import Staged
from tidegate.load.target import Publication, Target
from tidegate.postgres.connection import Connection

Answer = TypeVar("Answer")

FINISHES_REFRESH = "this finishes the full refresh that was begun and did not come to its end"
_REPLANS = 5


class Attempt(Protocol):
    """The hold that an attempt has on its job, as far as the work needs it."""

    @property
    def fence(self) -> Fence: ...

    @property
    def actor(self) -> str: ...

    @property
    def stored_plan(self) -> dict[str, Any] | None: ...

    def store_plan(self, plan: dict[str, Any] | None) -> None: ...

    def report(self, progress: dict[str, Any]) -> None: ...

    def record(self, action: str, detail: dict[str, Any]) -> None: ...

    def ask(self, question: Callable[[Connection], Answer]) -> Answer: ...

    def remaining_seconds(self) -> float: ...

    def check_alive(self) -> None: ...


@dataclass(slots=True)
class SyncOutcome:
    """What an attempt did."""

    loads: list[LoadResult] = field(default_factory=list)
    watermark: Watermark | None = None
    horizon: Horizon | None = None
    fingerprints: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """what there is to say where no load could say it"""

    @property
    def rows(self) -> int:
        return sum(load.rows for load in self.loads)

    @property
    def changed(self) -> int:
        return sum(load.changed for load in self.loads)

    @property
    def rejected(self) -> int:
        return sum(load.rejected for load in self.loads)

    @property
    def notes(self) -> list[str]:
        """What to know of the source, and what the loads had to say of the target, each once."""
        found = (note for load in self.loads for note in load.notes)
        return list(dict.fromkeys((*self.remarks, *found)))


@dataclass(slots=True)
class Transfer:
    """One attempt at one sync: from where, into what, and what it has done so far."""

    sync: Sync
    source: Source
    """opened again where it was changed while it was read"""
    target: Target
    attempt: Attempt
    full_refresh: bool = False
    max_batches: int | None = None
    loaded: Callable[[LoadResult], None] = lambda _: None
    """is called with every finished load"""
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    refreshes: bool | None = None
    """whether everything is loaded again; known once the attempt has begun"""

    @property
    def limit_reached(self) -> bool:
        return self.max_batches is not None and len(self.outcome.loads) >= self.max_batches

    def watermark(self) -> Watermark:
        return self.target.watermark(self.sync.pipeline)

    def plan(self, batch: Batch, watermark: Watermark) -> LoadPlan:
        update_id = self.source.update_id(batch, watermark)
        return LoadPlan(update_id, batch, watermark.generation, watermark.version)

    def stored_plan(self) -> LoadPlan | None:
        """What an earlier attempt at this job was at."""
        stored = self.attempt.stored_plan
        return None if stored is None else LoadPlan.from_json(stored)

    def is_still_due(self, plan: LoadPlan, watermark: Watermark) -> bool:
        """Whether a stored plan is not in, and neither the watermark nor the declaration that it
        was made for has changed."""
        if self.target.exists(plan.update_id):
            return False
        return self.plan(plan.batch, watermark) == plan

    def begin_refresh(self) -> Watermark:
        """Begin a full refresh if one is asked for, under a new generation.

        One that was not finished is finished now, whether or not it was asked for again.
        """
        watermark = self.watermark()
        if self.refreshes is not None:
            return watermark
        stored = self.stored_plan()
        begun = stored is not None and stored.generation == watermark.generation
        if not self.full_refresh or begun:
            # An earlier attempt at this job has begun it; what it loaded may even be in.
            self.refreshes = watermark.is_refreshing
            return watermark
        watermarks = Watermarks(self.target.ledger)
        doing = f"beginning the full refresh of {self.sync.name}"
        with self.target.fenced_transaction(self.attempt.fence, doing) as connection:
            watermarks.lock(connection, self.sync.pipeline, str(self.target.relation))
            current = self.watermark()
            columns = (current.declaration or {}).get("columns")
            declared = self.source.declaration(None, current, columns)
            watermark = watermarks.reset(
                connection,
                current,
                None,
                cursor_type=self.source.cursor_type,
                new_generation=True,
                moved_by=self.attempt.actor,
                reason="full refresh",
                declaration={**declared, "refreshing": current.version + 1},
            )
        self.refreshes = True
        return watermark

    def pass_over(self, watermark: Watermark, found: PassOver) -> None:
        move_watermark(self.target, self.attempt, self.sync, watermark, found)

    def check_moved(self, plan: LoadPlan) -> None:
        """A marker without its watermark would be met again and again."""
        if self.watermark().version <= plan.version:
            target = f"{self.sync.target.connection}:{self.target.relation}"
            raise LoadError(
                f"{target} has a marker for {plan.update_id}, but no watermark says that it is "
                "loaded: one of them was removed by hand",
                f"if its rows are not there: tidegate marker forget {target} {plan.update_id}",
            )

    def report(self, step: str, rows: int) -> None:
        """Say what is being done now, for whoever watches."""
        done = self.outcome
        self.attempt.report(
            {"step": step, "rows": rows, "loads": len(done.loads), "loaded": done.rows}
        )

    def add(self, result: LoadResult) -> None:
        """A load is done."""
        self.outcome.loads.append(result)
        self.attempt.record("load", result.detail)
        self.loaded(result)


def move_watermark(
    target: Target, attempt: Attempt, sync: Sync, watermark: Watermark, found: PassOver
) -> None:
    """Move the watermark without a load and without a marker."""
    fence = attempt.fence
    with target.fenced_transaction(fence, f"moving the watermark of {sync.name}") as connection:
        Watermarks(target.ledger).move(
            connection,
            watermark,
            replace(watermark, value=found.value, version=watermark.version + 1),
            cursor_type=found.cursor_type,
            fence=fence.token,
            attempt_id=fence.attempt_id,
            moved_by=attempt.actor,
            reason=found.reason,
            declaration=found.declaration,
            is_load=False,
        )


def run(transfer: Transfer) -> SyncOutcome:
    """Load until the source has nothing more, or the limit of batches is reached."""
    source, target, outcome = transfer.source, transfer.target, transfer.outcome
    source.check(transfer.watermark())
    watermark = transfer.begin_refresh()
    with source.scan(transfer, watermark) as scan:
        if not source.loads_whole:
            target.check_present(watermark)
        load_all(transfer, scan)
        outcome.watermark = transfer.watermark()
    return outcome


def load_all(transfer: Transfer, scan: Scan) -> None:
    """Load batch after batch.

    What was planned on a watermark that has moved since, or was lost from staging when the
    snapshot it came from had ended, is planned anew: publish raises both only after it has found
    no marker.
    """
    stored, replans = transfer.stored_plan(), 0
    while not transfer.limit_reached:
        try:
            if not load_next(transfer, scan, stored):
                return
            replans = 0
        except (WatermarkMoved, StagingLost):
            replans += 1
            if replans > _REPLANS:
                raise
        stored = None


def load_next(transfer: Transfer, scan: Scan, stored: LoadPlan | None = None) -> bool:
    """Plan and run one load; False when there is nothing to load."""
    source, target, attempt = transfer.source, transfer.target, transfer.attempt
    attempt.check_alive()
    watermark = transfer.watermark()
    due = stored is not None and transfer.is_still_due(stored, watermark)
    with scan.next(watermark, stored.batch if stored and due else None) as batch:
        if batch is None:
            return False
        if isinstance(batch, PassOver):
            transfer.pass_over(watermark, batch)
            scan.passed(batch, watermark)
            return True
        plan = transfer.plan(batch, watermark)
        attempt.store_plan(plan.to_json() | scan.stored(batch))
        reach("batch.planned")
        transfer.report("staging", batch.rows)
        started, rules, notes = time.monotonic(), source.rules(batch), dict[str, None]()

        def prepare(shape: Shape) -> None:
            found = target.prepare(
                shape, watermark, rules, fence=attempt.fence, source_names=source.names
            )
            notes.update(dict.fromkeys(found))

        staged = scan.stage(batch, prepare)
        reach("stage.done")
    # The source is free again while the rows are checked and published.
    transfer.report("publishing", sum(write.rows for write in staged.writes))
    published = check_and_publish(
        target,
        Publication(
            update_id=plan.update_id,
            batch=batch,
            shape=staged.shape,
            writes=staged.writes,
            watermark=watermark,
            cursor_type=source.cursor_type,
            fence=attempt.fence,
            moved_by=attempt.actor,
            remaining_seconds=attempt.remaining_seconds,
            rules=rules.for_batch(batch.kind, key_is_unique=staged.shape.key_is_unique),
            declaration={
                **position_after(batch, watermark),
                **source.declaration(batch, watermark, record_columns(staged.shape)),
            },
        ),
        attempt.check_alive,
    )
    target.discard(attempt.fence.attempt_id, ended=True)
    if published.already:
        transfer.check_moved(plan)
    is_finish = batch.kind is BatchKind.FULL and watermark.is_refreshing
    finishes = (FINISHES_REFRESH,) if is_finish and not transfer.full_refresh else ()
    transfer.add(
        LoadResult(
            update_id=plan.update_id,
            batch=batch,
            rows=published.rows,
            changed=published.changed,
            seconds=time.monotonic() - started,
            already=published.already,
            rejected=published.rejected,
            notes=(*notes, *published.notes, *finishes),
            late=published.late,
        )
    )
    scan.published(plan)
    return True


_STAGE_TRIES = 3


def stage_and_publish(
    destination: Target,
    stage: Callable[[], Staged],
    publication: Callable[[Staged], Publication],
    check_alive: Callable[[], None],
) -> Published:
    """The three steps; what a server's crash took out of staging is staged again."""
    for tries in range(1, _STAGE_TRIES + 1):
        staged = stage()
        reach("stage.done")
        try:
            return check_and_publish(destination, publication(staged), check_alive)
        except StagingLost:
            if tries == _STAGE_TRIES:
                raise
    raise AssertionError("unreachable")


def check_and_publish(
    destination: Target, publication: Publication, check_alive: Callable[[], None]
) -> Published:
    """The last two steps; staging that has lost rows is discarded."""
    try:
        check_alive()
        destination.check(
            publication.shape, publication.writes, publication.fence, publication.rules
        )
        reach("check.done")
        check_alive()
        return destination.publish(publication)
    except StagingLost:
        destination.discard(publication.fence.attempt_id, ended=True)
        raise
