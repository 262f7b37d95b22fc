"""One load: stage, check, publish. The order of these steps is the product."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.destinations.destination import Destination
from tidegate.destinations.publication import Publication
from tidegate.errors import StagingLost
from tidegate.failpoints import reach
from tidegate.model.cursor import CursorType
from tidegate.model.drift import record_columns
from tidegate.model.load import LoadPlan, LoadResult, Published
from tidegate.model.rules import Rules
from tidegate.model.shape import Shape
from tidegate.model.standing import kept_by
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.course import Attempt
from tidegate.pipeline.stage import Staged

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
    destination: Destination
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
                    **kept_by(plan.batch, watermark),
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
    destination: Destination,
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
    destination: Destination, publication: Publication, check_alive: Callable[[], None]
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
