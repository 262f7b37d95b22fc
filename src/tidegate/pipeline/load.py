"""One load: stage, check, publish. The order of these steps is the product."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.destinations.destination import Destination
from tidegate.destinations.publication import Publication
from tidegate.errors import StagingLost
from tidegate.failpoints import reach
from tidegate.ledger.fences import Fence
from tidegate.model.drift import record_columns
from tidegate.model.load import LoadPlan, LoadResult, Published
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import declaration
from tidegate.pipeline.context import Context
from tidegate.pipeline.stage import Reading, Staged, stage_batch
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

_STAGE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What all loads of one attempt at one sync share."""

    context: Context
    sync: Sync
    source: PostgresSource
    destination: Destination
    fence: Fence
    actor: str
    remaining_seconds: Callable[[], float]
    check_alive: Callable[[], None]
    staged: Callable[[int], None] = lambda _: None
    """is told of how many rows are staged, before they are published"""

    def run(
        self, connection: Connection, snapshot_name: str, plan: LoadPlan, watermark: Watermark
    ) -> LoadResult:
        """Move one batch, read from the given snapshot, into the target."""
        started = time.monotonic()
        notes: dict[str, None] = {}
        published = self._stage_and_publish(connection, snapshot_name, plan, watermark, notes)
        self.destination.discard(self.fence.attempt_id)
        return LoadResult(
            update_id=plan.update_id,
            batch=plan.batch,
            rows=published.rows,
            changed=published.changed,
            seconds=time.monotonic() - started,
            already=published.already,
            rejected=published.rejected,
            notes=tuple(notes),
        )

    def _stage_and_publish(
        self,
        connection: Connection,
        snapshot_name: str,
        plan: LoadPlan,
        watermark: Watermark,
        notes: dict[str, None],
    ) -> Published:
        rules = self.sync.rules

        def prepare(shape: Shape) -> None:
            found = self.destination.prepare(
                shape,
                watermark,
                rules,
                fence=self.fence,
                source_names=self.source.table.column_names,
            )
            notes.update(dict.fromkeys(found))

        def stage() -> Staged:
            return stage_batch(
                Reading(
                    self.context, self.sync, self.source, connection, snapshot_name, plan.batch
                ),
                self.destination,
                attempt_id=self.fence.attempt_id,
                prepare=prepare,
            )

        def publication(staged: Staged) -> Publication:
            self.staged(sum(write.rows for write in staged.writes))
            return Publication(
                update_id=plan.update_id,
                batch=plan.batch,
                shape=staged.shape,
                writes=staged.writes,
                watermark=watermark,
                cursor_type=None if self.source.cursor is None else self.source.cursor.type,
                fence=self.fence,
                moved_by=self.actor,
                remaining_seconds=self.remaining_seconds,
                rules=rules,
                declaration=declaration(self.sync, self.source, record_columns(staged.shape)),
            )

        return stage_and_publish(self.destination, stage, publication, self.check_alive)


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
            destination.discard(planned.fence.attempt_id)
            if attempt == _STAGE_TRIES:
                raise
    raise AssertionError("unreachable")
