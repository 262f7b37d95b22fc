"""Many syncs in one process: several at a time, and one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass

import psycopg

from tidegate.errors import (
    LoadError,
    TidegateError,
    words,
)
from tidegate.log import log
from tidegate.model.load import LoadResult
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import translate
from tidegate.runtime.claiming import open_heartbeat
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.runner import Runner, RunOptions, RunReport

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
