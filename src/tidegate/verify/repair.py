"""Load again what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tidegate.config.sync import Mode, Rules, Sync
from tidegate.core.batch import Batch, BatchKind, LoadPlan, LoadResult
from tidegate.core.errors import BusyError, DeclarationError, StaleAttempt
from tidegate.core.watermark import Watermark
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import claim_table, table_resource
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import REPAIR, JobRequest
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_target, unmoved_declaration
from tidegate.load.engine import Attempt, SyncOutcome, Transfer, load_all, move_watermark
from tidegate.load.source import PassOver, Prepare, Scan
from tidegate.load.sources.cdc.slot import SlotOrigin
from tidegate.load.sources.database import DatabaseSource
from tidegate.load.stage import Staged
from tidegate.load.target import Target
from tidegate.verify.compare import (
    Comparison,
    KeyRanges,
    RangeSums,
    find_differing_rows,
    find_ranges,
)
from tidegate.verify.difference import Opened
from tidegate.verify.report import Repair, RowDifference, Verdict, Verification
from tidegate.verify.verify import verify_sync


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
    destination: Target
    attempt: Attempt
    step: Callable[[LoadResult], None] = lambda _: None
    outcome: SyncOutcome = field(default_factory=SyncOutcome)
    difference: RowDifference | None = None

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
        origin = SlotOrigin.from_json(watermark.declaration["cdc"])
        declared = {
            **watermark.declaration,
            "cdc": replace(origin, tables=origin.seen, seen=None).to_json(),
        }
        reason = "what is in no log was repaired"
        moved = PassOver(watermark.value, declaration=declared, reason=reason)
        move_watermark(self.destination, self.attempt, self.sync, watermark, moved)
        self.outcome.watermark = self.destination.watermark(self.sync.pipeline)

    def _mend(self, opened: Opened) -> Comparison:
        sides = opened.expected, opened.found, opened.hashing
        seen = find_ranges(*sides)
        self._check_removal(opened, seen)
        left_out = 0
        for ranges in seen.ranges.passes(self.sync.batch_rows):
            self.attempt.check_alive()
            apart = find_differing_rows(*sides, ranges)
            left_out += apart.left_out
            found = apart.difference
            if found.any:
                self.difference = found if self.difference is None else self.difference.plus(found)
                self._load(opened, ranges)
        return Comparison(seen.expected_rows - left_out, seen.found_rows, self.difference)

    def _check_removal(self, opened: Opened, seen: RangeSums) -> None:
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
            extra += find_differing_rows(*sides, ranges).difference.extra
        limit.check(self.sync.target, extra, seen.found_rows)

    def _load(self, opened: Opened, ranges: KeyRanges) -> None:
        name = self.sync.source.connection
        with self.context.databases.lease(name) as connection:
            source = RepairSource(self.context, self.sync, opened.source, connection, opened)
            assert source.identity  # read once, while there is a session
        transfer = Transfer(
            self.sync,
            source,
            self.destination,
            self.attempt,
            loaded=self.step,
            outcome=self.outcome,
        )
        load_all(transfer, RepairScan(opened, transfer, ranges))
        self.outcome.watermark = self.destination.watermark(self.sync.pipeline)


@dataclass(slots=True)
class RepairSource(DatabaseSource):
    """Ranges of keys as the source has them, in the snapshots in which both sides are compared."""

    opened: Opened

    def rules(self, _: Batch) -> Rules:
        return replace(self.sync.rules, newest_wins=False)

    def declaration(self, _: Batch | None, __: Watermark, columns: Any) -> dict[str, Any]:
        return unmoved_declaration(self.opened.watermark, self.sync, self.source, columns)

    def scan(self, transfer: Transfer, _: Watermark) -> AbstractContextManager[Scan]:
        return nullcontext(RepairScan(self.opened, transfer))


@dataclass(slots=True)
class RepairScan:
    """Some ranges, once."""

    opened: Opened
    transfer: Transfer
    ranges: KeyRanges | None = None

    @contextmanager
    def next(self, watermark: Watermark, _: Batch | None) -> Iterator[Batch | PassOver | None]:
        if self.ranges is None:
            yield None
            return
        if _place(watermark) != _place(self.opened.watermark):
            raise BusyError(
                f"the watermark of {self.transfer.sync.name} moved while it was being repaired",
                "repair it again",
            )
        yield Batch(BatchKind.REPAIR, part=str(self.ranges), rows=self.ranges.rows)

    def stored(self, _: Batch) -> dict[str, Any]:
        """Never taken up again: who repeats a repair compares first."""
        return {}

    def stage(self, _: Batch, prepare: Prepare) -> Staged:
        assert self.ranges is not None
        return self.opened.stage(self.ranges, self.transfer.attempt.fence.attempt_id, prepare)

    def published(self, _: LoadPlan) -> None:
        self.ranges = None

    def passed(self, found: PassOver, watermark: Watermark) -> None:
        """The watermark stays where it is."""


def _place(watermark: Watermark) -> tuple[object, ...]:
    return (watermark.value, watermark.position, watermark.generation)


@dataclass(frozen=True, slots=True)
class CommandedLoads:
    """Loads into one sync's target, of a kind of their own: what the last run of the sync
    remembered stays what the next one needs."""

    context: Context
    heartbeat: Heartbeat
    sync: Sync
    kind: str
    command: str
    take_over: bool = False

    def run(
        self,
        work: Callable[[Target, LiveAttempt], dict[str, Any]],
        payload: dict[str, Any] | None = None,
    ) -> UUID:
        """Do the work as a fenced attempt; StaleAttempt when another took the table over.

        Who is killed in it leaves a job that has failed; the command is what goes on.
        """
        context, sync = self.context, self.sync
        actor = f"{user_name()} ({self.command})"
        destination = context.destination(sync.target, sync.layout)
        context.control_id()
        with context.plane.connect() as control:
            refuse_changed_target(context, control, sync)
            request = JobRequest(
                project=sync.project,
                kind=self.kind,
                name=sync.name,
                resource=table_resource(context, sync.target),
                payload={"target": str(sync.target), "command": self.command, **(payload or {})},
                max_attempts=1,
                limits=sync.resources,
            )
            claimed = claim_table(
                context,
                control,
                destination,
                sync.target,
                request,
                self.heartbeat,
                actor=actor,
                take_over=self.take_over,
            )
            destination.sweep(lambda: Jobs(context.plane).live_attempts(control))
            won = ClaimedWork(
                context=context,
                control=control,
                destination=destination,
                claimed=claimed,
                actor=actor,
                what=f"{self.kind} of {sync.name}",
                interrupt=lambda: context.spark.interrupt(claimed.claim.attempt_id),
            ).run(lambda attempt: work(destination, attempt))
        if not won:
            raise StaleAttempt(
                f"the {self.kind} of {sync.name} was cancelled or taken over",
                f"what it had published is in; to go on: {self.command} {sync.name}",
            )
        return claimed.claim.job_id


COMMAND = "tidegate verify --repair"


def repair_sync(
    context: Context,
    sync: Sync,
    heartbeat: Heartbeat,
    *,
    allow_removal: bool = False,
    step: Callable[[LoadResult], None] = lambda _: None,
) -> Verification:
    """What a comparison finds after all that differed was loaded again.

    Where nothing differs, no row is written. The target is held only from the second comparison
    on, so that loads go on beside the first.
    """
    if allow_removal:
        sync = replace(sync, max_removed=1.0)
    found = verify_sync(context, sync)
    if found.verdict is not Verdict.UNEQUAL and not (
        found.verdict is Verdict.EQUAL
        and was_stopped(context.destination(sync.target).watermark(sync.pipeline))
    ):
        return found
    refuse_repair(sync)
    done: list[RepairWork] = []

    def work(destination: Target, attempt: LiveAttempt) -> dict[str, Any]:
        repair = RepairWork(context, sync, destination, attempt, step)
        repair.run()
        done.append(repair)
        difference = repair.difference
        return {
            "loads": len(repair.outcome.loads),
            "rows": repair.outcome.rows,
            "changed": repair.outcome.changed,
            "rejected": repair.outcome.rejected,
            "missing": difference.missing if difference else 0,
            "extra": difference.extra if difference else 0,
            "different": difference.different if difference else 0,
        }

    job_id = CommandedLoads(context, heartbeat, sync, REPAIR, COMMAND).run(work)
    outcome = done[0].outcome
    repair = Repair(
        job=str(job_id),
        loads=len(outcome.loads),
        rows=outcome.rows,
        changed=outcome.changed,
        difference=done[0].difference,
    )
    return replace(verify_sync(context, sync), repair=repair)
