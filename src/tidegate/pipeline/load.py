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
        """Move one batch into the target; `stage` says what its rows look like before they move."""
        started = time.monotonic()
        notes: dict[str, None] = {}
        published = self._stage_and_publish(stage, plan, watermark, notes)
        self.destination.discard(self.attempt.fence.attempt_id, ended=True)
        return LoadResult(
            update_id=plan.update_id,
            batch=plan.batch,
            rows=published.rows,
            changed=published.changed,
            seconds=time.monotonic() - started,
            already=published.already,
            rejected=published.rejected,
            notes=tuple(notes),
            late=published.late,
        )

    def _stage_and_publish(
        self,
        stage: Callable[[Prepare], Staged],
        plan: LoadPlan,
        watermark: Watermark,
        notes: dict[str, None],
    ) -> Published:
        rules, fence = self.rules or self.sync.rules, self.attempt.fence

        def prepare(shape: Shape) -> None:
            found = self.destination.prepare(
                shape, watermark, rules, fence=fence, source_names=self.source_names
            )
            notes.update(dict.fromkeys(found))

        def publication(staged: Staged) -> Publication:
            self.staged(sum(write.rows for write in staged.writes))
            return Publication(
                update_id=plan.update_id,
                batch=plan.batch,
                shape=staged.shape,
                writes=staged.writes,
                watermark=watermark,
                cursor_type=self.cursor_type,
                fence=fence,
                moved_by=self.attempt.actor,
                remaining_seconds=self.attempt.remaining_seconds,
                rules=rules,
                declaration={
                    **kept_by(plan.batch, watermark),
                    **self.declare(record_columns(staged.shape)),
                },
            )

        return stage_and_publish(
            self.destination, lambda: stage(prepare), publication, self.attempt.check_alive
        )


def stage_and_publish(
    destination: Destination,
    stage: Callable[[], Staged],
    publication: Callable[[Staged], Publication],
    check_alive: Callable[[], None],
) -> Published:
    """The three steps; what a server's crash took out of staging is staged again."""
    for attempt in range(1, _STAGE_TRIES + 1):
        staged = stage()
        reach("stage.done")
        planned = publication(staged)
        try:
            check_alive()
            destination.check(staged.shape, staged.writes, planned.fence, planned.rules)
            reach("check.done")
            check_alive()
            return destination.publish(planned)
        except StagingLost:
            destination.discard(planned.fence.attempt_id, ended=True)
            if attempt == _STAGE_TRIES:
                raise
    raise AssertionError("unreachable")
