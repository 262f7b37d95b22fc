"""Putting a target right: the ranges of keys that differ are loaded again, and nothing else.

Each load is the target's own: it takes the rows of these ranges as the source has them, whatever
cursor the target's rows have, and removes those that the source does not have. All of them read
one snapshot of the source, taken while no other load can publish. The watermark stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.destinations.destination import Destination
from tidegate.errors import BusyError, DeclarationError
from tidegate.failpoints import reach
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.key_ranges import KeyRanges
from tidegate.model.load import LoadResult
from tidegate.model.rules import Mode
from tidegate.model.slot import Origin
from tidegate.model.sync import Sync
from tidegate.model.verification import Difference, Verification
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import declared_still
from tidegate.pipeline.compare import Comparison, Sums, find_ranges, tell_apart
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import Attempt, Course, SyncOutcome
from tidegate.pipeline.load import Load
from tidegate.pipeline.opened import Opened
from tidegate.pipeline.verify import verify_sync
from tidegate.postgres.catalog import database_identity


def refuse_repair(sync: Sync) -> None:
    """Refuse a sync whose rows cannot be put right by key."""
    again = f"tidegate run {sync.name} --full-refresh"
    if sync.mode is Mode.APPEND:
        raise DeclarationError(
            f"sync {sync.name}: mode append keeps every row that it was given, so nothing in it "
            "can be put right by itself",
            "rows that are missing and have a key come with: tidegate backfill "
            f"{sync.name} --from … --to …; to load everything again: {again}",
        )
    if sync.is_soft and sync.lake_target:
        raise DeclarationError(
            f'sync {sync.name}: with deletes = "soft" a table of a lake is not repaired, since '
            "rows that are gone would have to stay there",
            f"to load everything again, without the rows that are gone: {again}",
        )
    if sync.mode is Mode.REPLACE:
        raise DeclarationError(
            f"sync {sync.name}: mode replace has no ranges to repair, it loads all of it each time",
            f"to load it again: {again}",
        )


def refuse_unfinished(sync: Sync, watermark: Watermark) -> None:
    """Nothing but the refresh itself may be loaded until it is finished."""
    if watermark.is_refreshing:
        raise DeclarationError(
            f"sync {sync.name}: a full refresh was begun and is not finished",
            f"finish it first: tidegate run {sync.name}",
        )


def was_stopped(watermark: Watermark) -> bool:
    """Whether a run has stopped at something that is in no log, and nothing was done about it."""
    return ((watermark.declaration or {}).get("cdc") or {}).get("seen") is not None


@dataclass(slots=True)
class RepairWork:
    """The work of one attempt; `step` is told of every finished load."""

    context: Context
    sync: Sync
    destination: Destination
    attempt: Attempt
    step: Callable[[LoadResult], None] = lambda _: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    difference: Difference | None = None

    def run(self) -> Verification:
        """Compare once more, now that nobody else loads, and load what differs."""
        refuse_unfinished(self.sync, self.destination.watermark(self.sync.pipeline))
        found = verify_sync(self.context, self.sync, self._mend)
        self._accept_tables()
        return found

    def _accept_tables(self) -> None:
        """The target has what is in no log: a run goes on from the tables that were seen last."""
        watermark = self.destination.watermark(self.sync.pipeline)
        if not was_stopped(watermark):
            return
        assert watermark.value is not None
        assert watermark.declaration is not None
        origin = Origin.from_json(watermark.declaration["cdc"])
        declared = {
            **watermark.declaration,
            "cdc": replace(origin, tables=origin.seen, seen=None).to_json(),
        }
        course = Course(self.sync, self.destination, self.attempt, self.outcome)
        course.pass_over(
            watermark,
            watermark.value,
            declaration=declared,
            reason="what is in no log was repaired",
        )
        self.outcome.watermark = self.destination.watermark(self.sync.pipeline)

    def _mend(self, opened: Opened) -> Comparison:
        sides = opened.expected, opened.found, opened.hashing
        seen = find_ranges(*sides)
        self._check_removal(opened, seen)
        left_out = 0
        for ranges in seen.ranges.passes(self.sync.batch_rows):
            self.attempt.check_alive()
            apart = tell_apart(*sides, ranges)
            left_out += apart.left_out
            found = apart.difference
            if found.any:
                self.difference = found if self.difference is None else self.difference.plus(found)
                self._load(opened, ranges)
        return Comparison(seen.expected_rows - left_out, seen.found_rows, self.difference)

    def _check_removal(self, opened: Opened, seen: Sums) -> None:
        """Refuse to remove, or to mark as gone, too much; before the first range is loaded."""
        limit = self.sync.removal_limit(
            f"tidegate verify {self.sync.name} --repair --allow-removal"
        )
        most = min(seen.ranges.rows, seen.found_rows)
        # No more rows can be too many than lie in the ranges that differ.
        if limit is None or not limit.is_exceeded(most, seen.found_rows):
            return
        sides = opened.expected, opened.found, opened.hashing
        extra = 0
        for ranges in seen.ranges.passes(self.sync.batch_rows):
            self.attempt.check_alive()
            extra += tell_apart(*sides, ranges).difference.extra
        limit.check(self.sync.target, extra, seen.found_rows)

    def _load(self, opened: Opened, ranges: KeyRanges) -> None:
        watermark = self.destination.watermark(self.sync.pipeline)
        if _place(watermark) != _place(opened.watermark):
            raise BusyError(
                f"the watermark of {self.sync.name} moved while it was being repaired",
                "repair it again",
            )
        source = opened.source
        course = Course(self.sync, self.destination, self.attempt, self.outcome)
        batch = Batch(BatchKind.REPAIR, part=str(ranges), rows=ranges.rows)
        connection = self.context.databases.lease(self.sync.source.connection)
        with connection as session:
            identity = f"{database_identity(session)}/{self.sync.source.relation}"
        plan = course.plan(identity, batch, watermark)
        # Never taken up again: who repeats a repair compares first.
        self.attempt.store_plan(plan.to_json())
        reach("batch.planned")
        course.report("staging", batch.rows)

        def declare(columns: Any) -> dict[str, Any]:
            return declared_still(opened.watermark, self.sync, source, columns)

        result = Load(
            sync=self.sync,
            destination=self.destination,
            attempt=self.attempt,
            source_names=source.table.column_names,
            cursor_type=source.cursor_type,
            declare=declare,
            rules=replace(self.sync.rules, newest_wins=False),
            staged=lambda rows: course.report("publishing", rows),
        ).run(
            lambda prepare: opened.stage(ranges, self.attempt.fence.attempt_id, prepare),
            plan,
            watermark,
        )
        self.outcome.loads.append(result)
        self.outcome.watermark = self.destination.watermark(self.sync.pipeline)
        self.step(result)


def _place(watermark: Watermark) -> tuple[object, ...]:
    return (watermark.value, watermark.position, watermark.generation)
