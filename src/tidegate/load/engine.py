"""Plan, stage, check, publish, batch after batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tidegate.config.sync import Rules, Sync
from tidegate.core.batch import Batch, LoadPlan, LoadResult, Published
from tidegate.core.errors import LoadError, StagingLost, WatermarkMoved
from tidegate.core.failpoints import reach
from tidegate.core.identity import load_update_id
from tidegate.core.shape import Shape, record_columns
from tidegate.core.watermark import CursorType, Horizon, Watermark
from tidegate.ledger.fences import Fence
from tidegate.ledger.watermarks import Watermarks
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


@dataclass(frozen=True, slots=True)
class Course:
    """What the work of an attempt does whatever its source is."""

    sync: Sync
    destination: Target
    attempt: Attempt
    outcome: SyncOutcome
    max_batches: int | None = None

    def watermark(self) -> Watermark:
        return self.destination.watermark(self.sync.pipeline)

    @property
    def limit_reached(self) -> bool:
        return self.max_batches is not None and len(self.outcome.loads) >= self.max_batches

    def follow(self, load_next: Callable[[], bool]) -> None:
        """Load until there is nothing more.

        What was planned on a watermark that has moved since, or was lost from staging when the
        snapshot it came from had ended, is planned again.
        """
        replans = 0
        while not self.limit_reached:
            try:
                if not load_next():
                    break
            except (WatermarkMoved, StagingLost):
                replans += 1
                if replans > _REPLANS:
                    raise

    def begin_refresh(
        self, declare: Callable[[Any], Mapping[str, Any]], cursor_type: CursorType | None
    ) -> Watermark:
        """A full refresh starts by forgetting how far the sync had got, under a new generation."""
        watermarks, table = Watermarks(self.destination.ledger), str(self.destination.relation)
        doing = f"beginning the full refresh of {self.sync.name}"
        with self.destination.fenced_transaction(self.attempt.fence, doing) as connection:
            watermarks.lock(connection, self.sync.pipeline, table)
            current = self.watermark()
            columns = (current.declaration or {}).get("columns")
            return watermarks.reset(
                connection,
                current,
                None,
                cursor_type=cursor_type,
                new_generation=True,
                moved_by=self.attempt.actor,
                reason="full refresh",
                declaration={**declare(columns), "refreshing": current.version + 1},
            )

    def pass_over(
        self,
        watermark: Watermark,
        value: str | None,
        cursor_type: CursorType | None = None,
        declaration: Mapping[str, Any] | None = None,
        reason: str = "nothing changed",
    ) -> None:
        """Move to where the source stands, when nothing has changed on the way there."""
        fence = self.attempt.fence
        doing = f"moving the watermark of {self.sync.name}"
        with self.destination.fenced_transaction(fence, doing) as connection:
            Watermarks(self.destination.ledger).move(
                connection,
                watermark,
                replace(watermark, value=value, version=watermark.version + 1),
                cursor_type=cursor_type,
                fence=fence.token,
                attempt_id=fence.attempt_id,
                moved_by=self.attempt.actor,
                reason=reason,
                declaration=declaration,
                is_load=False,
            )

    def plan(self, source: str, batch: Batch, watermark: Watermark) -> LoadPlan:
        update_id = load_update_id(
            pipeline=self.sync.pipeline,
            source=source,
            target=str(self.destination.relation),
            generation=watermark.generation,
            version=watermark.version,
            batch=batch,
        )
        return LoadPlan(update_id, batch, watermark.generation, watermark.version)

    def take_stored(
        self, plan_again: Callable[[Batch, Watermark], LoadPlan]
    ) -> Callable[[Watermark], Batch | None]:
        """The batch an earlier attempt at this job was at, once, if it is still to be done."""
        stored = self.attempt.stored_plan
        plan = None if stored is None else LoadPlan.from_json(stored)

        def batch(watermark: Watermark) -> Batch | None:
            nonlocal plan
            found, plan = plan, None
            if found is None or self.destination.exists(found.update_id):
                return None
            # Another version, generation or declaration: what was planned then is not to be done.
            return found.batch if plan_again(found.batch, watermark) == found else None

        return batch

    def check_moved(self, plan: LoadPlan) -> None:
        """A marker without its watermark would be met again and again."""
        if self.watermark().version <= plan.version:
            target = f"{self.sync.target.connection}:{self.destination.relation}"
            raise LoadError(
                f"{target} has a marker for {plan.update_id}, but no watermark says that it is "
                "loaded: one of them was removed by hand",
                f"if its rows are not there: tidegate marker forget {target} {plan.update_id}",
            )

    def report(self, step: str, rows: int) -> None:
        before = self.outcome
        self.attempt.report(
            {"step": step, "rows": rows, "loads": len(before.loads), "loaded": before.rows}
        )


_STAGE_TRIES = 3


Prepare = Callable[[Shape], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that are staged, and what was said when the target was prepared for them."""

    staged: Staged
    notes: tuple[str, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Load:
    """What all loads of one attempt at one sync share."""

    sync: Sync
    destination: Target
    attempt: Attempt
    source_names: tuple[str, ...]
    cursor_type: CursorType | None
    declare: Callable[[Any], dict[str, Any]]
    """what is remembered of the sync, given its columns"""
    rules: Rules | None = None
    """where they are not those of the sync"""
    staged: Callable[[int], None] = lambda _: None
    """is told of how many rows are staged, before they are published"""

    def run(
        self, stage: Callable[[Prepare], Staged], plan: LoadPlan, watermark: Watermark
    ) -> LoadResult:
        """Move one batch that can be staged at any time; what staging lost is staged again."""
        for tries in range(1, _STAGE_TRIES + 1):
            try:
                return self.publish(self.stage(stage, watermark), plan, watermark)
            except StagingLost:
                if tries == _STAGE_TRIES:
                    raise
        raise AssertionError("unreachable")

    def stage(self, stage: Callable[[Prepare], Staged], watermark: Watermark) -> Prepared:
        """Write the rows aside; `stage` says what they look like before the first one moves."""
        started = time.monotonic()
        notes: dict[str, None] = {}

        def prepare(shape: Shape) -> None:
            found = self.destination.prepare(
                shape,
                watermark,
                self._rules,
                fence=self.attempt.fence,
                source_names=self.source_names,
            )
            notes.update(dict.fromkeys(found))

        staged = stage(prepare)
        reach("stage.done")
        return Prepared(staged, tuple(notes), started)

    def publish(self, prepared: Prepared, plan: LoadPlan, watermark: Watermark) -> LoadResult:
        """Check and publish what was staged; StagingLost when it is not there any more."""
        staged, fence = prepared.staged, self.attempt.fence
        self.staged(sum(write.rows for write in staged.writes))
        published = check_and_publish(
            self.destination,
            Publication(
                update_id=plan.update_id,
                batch=plan.batch,
                shape=staged.shape,
                writes=staged.writes,
                watermark=watermark,
                cursor_type=self.cursor_type,
                fence=fence,
                moved_by=self.attempt.actor,
                remaining_seconds=self.attempt.remaining_seconds,
                rules=self._rules.for_batch(
                    plan.batch.kind, key_is_unique=staged.shape.key_is_unique
                ),
                declaration={
                    **position_after(plan.batch, watermark),
                    **self.declare(record_columns(staged.shape)),
                },
            ),
            self.attempt.check_alive,
        )
        self.destination.discard(fence.attempt_id, ended=True)
        return LoadResult(
            update_id=plan.update_id,
            batch=plan.batch,
            rows=published.rows,
            changed=published.changed,
            seconds=time.monotonic() - prepared.started,
            already=published.already,
            rejected=published.rejected,
            notes=(*prepared.notes, *published.notes),
            late=published.late,
        )

    @property
    def _rules(self) -> Rules:
        return self.rules or self.sync.rules


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
