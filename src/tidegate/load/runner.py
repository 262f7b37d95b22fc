"""Run one sync or many, as jobs in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from tidegate.config.sync import Sync
from tidegate.core.batch import LoadResult
from tidegate.core.errors import LoadError, TidegateError, words
from tidegate.core.log import log
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import Claimed, claim_table, open_heartbeat, table_resource
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import SYNC, JobRequest
from tidegate.jobs.job_records import JobRecords
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.declaration_changes import refuse_changed_target, take_table
from tidegate.load.engine import SyncOutcome, Transfer, run
from tidegate.load.source import Source
from tidegate.load.sources.registry import open_source, work_through
from tidegate.postgres.connection import Connection, translate


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the caller of a run may ask for."""

    full_refresh: bool = False
    max_batches: int | None = None
    take_over: bool = False
    allow_removal: bool = False
    """more of the target may go than [safety] max_removed says"""

    def applied_to(self, sync: Sync) -> Sync:
        return replace(sync, max_removed=1.0) if self.allow_removal else sync


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended; `stale` means that another attempt took over, or that it was cancelled."""

    job_id: UUID
    status: str
    outcome: SyncOutcome
    cancelled: bool = False

    @property
    def rows(self) -> int:
        """How many rows were loaded."""
        return self.outcome.rows

    @property
    def loads(self) -> list[LoadResult]:
        return self.outcome.loads

    @property
    def watermark(self) -> str | None:
        """How far the sync has got."""
        return self.outcome.watermark.value if self.outcome.watermark else None

    @property
    def found_nothing(self) -> bool:
        return self.status == "done" and not self.outcome.loads


class Runner:
    """Runs syncs in this process, each as a fenced attempt at a job."""

    def __init__(
        self,
        context: Context,
        heartbeat: Heartbeat,
        *,
        step: Callable[[Sync, LoadResult], None] | None = None,
    ) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._jobs = Jobs(context.plane)
        self._step = step or (lambda _sync, _load: None)
        self._actor = f"{user_name()} ({heartbeat.worker.command})"

    def run(self, sync: Sync, options: RunOptions | None = None) -> RunReport:
        """Run one sync to its horizon; refuses bad declarations before anything is written."""
        options = options or RunOptions()
        sync = options.applied_to(sync)
        with self._sessions(sync) as (source, control):
            refuse_changed_target(self._context, control, sync, take_over=options.take_over)
            claimed = claim_table(
                self._context,
                control,
                self._context.destination(sync.target, sync.layout),
                sync.target,
                sync_request(self._context, sync, options),
                self._heartbeat,
                actor=self._actor,
                take_over=options.take_over,
            )
            return self._work(sync, options, source, control, claimed)

    def work(self, sync: Sync, claimed: Claimed, options: RunOptions) -> RunReport:
        """Work a job that was claimed from the queue; after an error it is put back there."""
        sync = options.applied_to(sync)
        with self._sessions(sync) as (source, control):
            refuse_changed_target(self._context, control, sync)
            return self._work(sync, options, source, control, claimed, retries=True)

    @contextmanager
    def _sessions(self, sync: Sync) -> Iterator[tuple[Source, Connection]]:
        context = self._context
        try:
            with open_source(context, sync) as source:
                context.control_id()  # so that there is a control plane to connect to
                with context.plane.connect() as control:
                    yield source, control
        except psycopg.Error as error:
            raise translate(error, f"sync {sync.name}") from error

    def _work(
        self,
        sync: Sync,
        options: RunOptions,
        source: Source,
        control: Connection,
        claimed: Claimed,
        *,
        retries: bool = False,
    ) -> RunReport:
        destination = self._context.destination(sync.target, sync.layout)
        destination.sweep(lambda: self._jobs.live_attempts(control))
        outcome = SyncOutcome()

        def work(attempt: LiveAttempt) -> dict[str, Any]:
            transfer = Transfer(
                sync=sync,
                source=source,
                target=destination,
                attempt=attempt,
                full_refresh=options.full_refresh,
                max_batches=options.max_batches,
                loaded=partial(self._step, sync),
                outcome=outcome,
            )

            def read(source: Source) -> None:
                if options.take_over:
                    take_table(destination, sync, attempt.fence)
                transfer.source = source
                run(transfer)

            work_through(
                self._context,
                sync,
                source,
                read,
                check_alive=attempt.check_alive,
                progress=lambda: len(outcome.loads),
            )
            return _result(outcome)

        won = ClaimedWork(
            context=self._context,
            control=control,
            destination=destination,
            claimed=claimed,
            actor=self._actor,
            what=f"sync {sync.name}",
            interrupt=lambda: self._context.spark.interrupt(claimed.claim.attempt_id),
            retries=retries,
        ).run(work)
        job_id = claimed.claim.job_id
        if won:
            return RunReport(job_id, "done", outcome)
        return RunReport(job_id, "stale", outcome, cancelled=self._is_cancelled(job_id))

    def _is_cancelled(self, job_id: UUID) -> bool:
        """Whether somebody asked for that, as far as can be told now."""
        with suppress(psycopg.Error, TidegateError), self._context.plane.connect() as control:
            found = JobRecords(self._context.plane).get(control, job_id)
            return found is not None and found.cancel_requested_at is not None
        return False


def sync_request(context: Context, sync: Sync, options: RunOptions) -> JobRequest:
    """The job that runs a sync."""
    return JobRequest(
        project=sync.project,
        kind=SYNC,
        name=sync.name,
        resource=table_resource(context, sync.target),
        payload={"target": str(sync.target), "full_refresh": options.full_refresh}
        | ({} if options.max_batches is None else {"max_batches": options.max_batches})
        | ({"allow_removal": True} if options.allow_removal else {}),
        max_attempts=context.settings.worker.max_attempts,
        limits=sync.resources,
    )


def _result(outcome: SyncOutcome) -> dict[str, Any]:
    horizon = None if outcome.horizon is None else asdict(outcome.horizon)
    return {
        "loads": len(outcome.loads),
        "rows": outcome.rows,
        "changed": outcome.changed,
        "rejected": outcome.rejected,
        "notes": outcome.notes,
        "found_nothing": not outcome.loads,
        "watermark": outcome.watermark.value if outcome.watermark else None,
        "horizon": json.loads(json.dumps(horizon, default=str)),
        "fingerprints": outcome.fingerprints,
        "late": _late(outcome),
    }


def _late(outcome: SyncOutcome) -> dict[str, Any]:
    """Rows that came after the watermark had passed them, and how far behind it they were."""
    found = [load.late for load in outcome.loads if load.late is not None]
    return {
        "rows": sum(one.rows for one in found),
        "farthest": max((one.farthest for one in found), default=0.0),
    }


_COMMAND = "tidegate run"


@dataclass(frozen=True, slots=True)
class SyncEnd:
    """How one of several syncs ended: with a report, or with an error."""

    sync: Sync
    report: RunReport | None = None
    error: TidegateError | None = None


@dataclass(frozen=True, slots=True)
class ManyReport:
    """How several syncs ended, in the order in which they were asked for."""

    ends: tuple[SyncEnd, ...]

    @property
    def failed(self) -> tuple[SyncEnd, ...]:
        return tuple(end for end in self.ends if end.error is not None)

    @property
    def rows(self) -> int:
        return sum(end.report.rows for end in self.ends if end.report is not None)

    @property
    def exit_code(self) -> int:
        """0, or the code that all failures share, or 1."""
        codes = {end.error.exit_code for end in self.ends if end.error is not None}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 1


def run_many(
    context: Context,
    syncs: Sequence[Sync],
    options: RunOptions | None = None,
    *,
    concurrency: int,
    step: Callable[[Sync, LoadResult], None] | None = None,
    ended: Callable[[SyncEnd], None] | None = None,
    heartbeat: Heartbeat | None = None,
) -> ManyReport:
    """Run syncs side by side, at most `concurrency` at once; `ended` is told of each.

    Who has to know what is held, to leave in good order, gives a `heartbeat` of its own.
    """
    with nullcontext(heartbeat) if heartbeat else open_heartbeat(context, _COMMAND) as heartbeat:
        return _run_all(Runner(context, heartbeat, step=step), syncs, options, concurrency, ended)


def _run_all(
    runner: Runner,
    syncs: Sequence[Sync],
    options: RunOptions | None,
    concurrency: int,
    ended: Callable[[SyncEnd], None] | None,
) -> ManyReport:
    def run(sync: Sync) -> SyncEnd:
        try:
            return SyncEnd(sync, report=runner.run(sync, options))
        except TidegateError as error:
            return SyncEnd(sync, error=error)
        except psycopg.Error as error:
            return SyncEnd(sync, error=translate(error, f"sync {sync.name}"))
        except Exception as error:
            log.exception("run_failed", sync=sync.name)
            return SyncEnd(sync, error=LoadError(words(error)))

    pool = ThreadPoolExecutor(max(1, min(concurrency, len(syncs))), "tidegate-run")
    try:
        futures = {pool.submit(run, sync): place for place, sync in enumerate(syncs)}
        found: dict[int, SyncEnd] = {}
        for future in as_completed(futures):
            end = found[futures[future]] = future.result()
            if ended is not None:
                ended(end)
    finally:
        # Interrupted: what has begun is left to the next run, what has not is not begun.
        pool.shutdown(wait=False, cancel_futures=True)
    return ManyReport(tuple(found[place] for place in range(len(syncs))))
