"""The worker and the handlers it calls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tidegate.core.errors import BusyError, TidegateError, UsageError, words
from tidegate.core.log import log
from tidegate.jobs.attempt import may_be_retried
from tidegate.jobs.claim import Claimed, WorkerTurn, WorkerTurns
from tidegate.jobs.context import JobContext
from tidegate.jobs.heartbeat import Heartbeat, Waker
from tidegate.jobs.history.writer import record_end
from tidegate.jobs.job import KINDS, NOTHING, Claim, Ending, JobStatus
from tidegate.jobs.lease import Lease, now
from tidegate.jobs.queue import Jobs
from tidegate.jobs.shutdown import release_job
from tidegate.jobs.worker_records import WorkerIdentity as Identity
from tidegate.jobs.worker_records import Workers
from tidegate.postgres.connection import Connection


@dataclass(slots=True)
class WorkerCounts:
    """How the jobs of this worker ended."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    stale: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + number)

    @property
    def jobs(self) -> int:
        return self.done + self.failed + self.retried + self.stale

    @property
    def exit_code(self) -> int:
        """A stale attempt is no failure: another has the job."""
        return 1 if self.failed or self.retried else 0


Check = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Handler:
    """Works jobs of one kind.

    `work` ends the job itself, through ClaimedWork: it raises when the job failed, and returns
    False when another attempt took over. A kind with `quick`
    instead takes no time and no lock: such jobs are claimed and finished together.
    """

    kind: str
    check: Check
    work: Callable[[Claimed], bool] | None = None
    quick: Callable[[Claim], dict[str, Any] | None] | None = None


def check_kind(kind: str, handlers: dict[str, Handler]) -> Handler:
    """The handler of a kind; UsageError names those there are."""
    handler = handlers.get(kind)
    if handler is None:
        known = ", ".join(sorted(handlers))
        what = "cannot be queued" if kind in KINDS else "does not exist"
        raise UsageError(f"the kind of job {kind!r} {what}", f"use one of {known}")
    return handler


def payload_text(name: str, payload: dict[str, Any], key: str) -> str:
    """A text that the payload of a job must hold."""
    value = payload.get(key) if isinstance(payload, dict) else None
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"the job {name} is malformed: its payload holds no {key}",
            "submit it again with: tidegate run NAME --queue",
        )
    return value


def payload_flag(name: str, payload: dict[str, Any], key: str) -> bool:
    """A yes or no that the payload of a job may hold."""
    value = payload.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(
            f"the job {name} is malformed: {key} in its payload is {value!r}, not true or false",
            "submit it again with: tidegate run NAME --queue",
        )
    return value


def _accept_anything(_: str, __: dict[str, Any]) -> None:
    """Nothing can be wrong with a job that does nothing."""


NOTHING_HANDLER = Handler(NOTHING, check=_accept_anything, quick=lambda _: None)


_LONGEST_WAIT_FOR_DATABASE = 5.0
_SOONEST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works; `once` ends it after one job, `burst` when the queue is empty."""

    concurrency: int = 1
    once: bool = False
    burst: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(
                f"a worker with a concurrency of {self.concurrency} would work nothing",
                "give 1 or more",
            )
        if self.once and self.burst:
            raise UsageError("--once and --burst were both given", "give one of them")


class Worker:
    """One process that takes jobs of some kinds from the queue of one project."""

    def __init__(
        self, context: JobContext, handlers: Mapping[str, Handler], options: WorkerOptions
    ) -> None:
        self.tally = WorkerCounts()
        settings = context.settings
        self._context = context
        self._handlers = handlers
        self._options = options
        self._concurrency = 1 if options.once else options.concurrency
        self._jobs = Jobs(context.plane)
        kinds = tuple(handlers)
        self.heartbeat = Heartbeat(
            context.plane,
            Identity.of_this_process(
                settings.project.name, "tidegate worker", kinds, self._concurrency
            ),
            lease_seconds=settings.worker.lease_seconds,
            interval_seconds=settings.worker.heartbeat_seconds,
        )
        self._turns = WorkerTurns(
            context.plane,
            self.heartbeat.worker.worker_id,
            settings.project.name,
            kinds,
            settings.worker.lease_seconds,
        )
        self._poll_seconds = settings.worker.poll_seconds
        self._backoff = settings.worker.backoff
        self._waker = Waker()
        self._stopping = threading.Event()
        self._claiming = threading.Lock()
        self._connection: Connection | None = None
        self._running: set[Future[None]] = set()
        self._claimed = 0

    def run(self, ready: Callable[[], None] = lambda: None) -> WorkerCounts:
        """Work until told to stop, or until there is nothing more to do."""
        with self.heartbeat, ThreadPoolExecutor(self._concurrency, "tidegate-job") as pool:
            self._reach_database(self.heartbeat.join)
            self._reach_database(self._listen)
            ready()
            try:
                self._work(pool)
            finally:
                self._stopping.set()
        if self._connection is not None:
            self._connection.close()
        self._waker.close()
        return self.tally

    def stop(self) -> None:
        """Claim nothing more and end when what runs has ended."""
        self._stopping.set()
        self._waker.wake()

    def leave(self, reason: str) -> int:
        """Give back or end what is being worked on, now; returns the process's exit code."""
        self._stopping.set()
        # A claim that is on its way would be left behind.
        self._claiming.acquire(timeout=0.5)
        leases = [lease for lease in self.heartbeat.leases() if lease.leave is not None]
        with ThreadPoolExecutor(max(1, len(leases))) as pool:
            left = sum(pool.map(lambda lease: _leave(lease, reason), leases))
        with suppress(psycopg.Error, TidegateError), self._context.plane.connect() as control:
            left += self._give_back_unknown(control, reason)
            Workers(self._context.plane).forget(control, self.heartbeat.worker)
        return 1 if left else self.tally.exit_code

    def _work(self, pool: ThreadPoolExecutor) -> None:
        endings: list[Ending] = []
        while True:
            self._running = {future for future in self._running if not future.done()}
            limit = self._free_places()
            if not limit and not endings and (self._options.once or self._stopping.is_set()):
                if not self._running:
                    return
                self._waker.wait(None, self._poll_seconds)
                continue
            since = now()
            turn = self._take_turn(endings, limit)
            if turn is None:
                continue
            endings = self._start(turn, since, pool)
            if turn.claims or endings:
                continue
            if not self._running and (self._options.burst or self._options.once):
                return
            self._wait()

    def _free_places(self) -> int:
        if self._stopping.is_set() or (self._options.once and self._claimed):
            return 0
        return self._concurrency - len(self._running)

    def _take_turn(self, endings: list[Ending], limit: int) -> WorkerTurn | None:
        """Finish and claim; None when the database was gone meanwhile, to be tried again."""
        try:
            connection = self._connection
            if connection is None or connection.closed:
                self._listen()
                connection = self._connection
                assert connection is not None
            with self._claiming, self.heartbeat.answered_soon(connection):
                turn = self._turns.take(connection, endings, limit)
        except (psycopg.Error, TidegateError) as error:
            self._lost_database(error)
            self._reach_database(self._listen)
            return None
        lost = {ending.claim.attempt_id for ending in endings} - turn.won
        for ending in endings:
            if ending.claim.attempt_id in lost:
                _log_stale(ending.claim)
        self.tally.count("stale", len(lost))
        self.tally.count("done", len(endings) - len(lost))
        self._claimed += len(turn.claims)
        return turn

    def _start(self, turn: WorkerTurn, since: float, pool: ThreadPoolExecutor) -> list[Ending]:
        """Put the long ones to threads, do the quick ones here; returns how those ended."""
        endings: list[Ending] = []
        for claim in turn.claims:
            handler = self._handlers[claim.kind]
            if handler.quick is not None:
                endings.append(Ending(claim, JobStatus.DONE, result=handler.quick(claim)))
                continue
            # Held before its thread starts, so that a shutdown finds it.
            self.heartbeat.hold(
                claim,
                since=since,
                interrupt=lambda: None,
                leave=lambda reason, claim=claim: self._give_back(claim, reason),  # type: ignore[misc]
            )
            future = pool.submit(self._run_job, handler, Claimed(claim, self.heartbeat, since))
            self._running.add(future)
            future.add_done_callback(lambda _: self._waker.wake())
        return endings

    def _run_job(self, handler: Handler, claimed: Claimed) -> None:
        claim = claimed.claim
        log.info("job_started", job=str(claim.job_id), kind=claim.kind, name=claim.name)
        began = now()
        try:
            handler.check(claim.name, claim.payload)
            assert handler.work is not None
            won = handler.work(claimed)
        except Exception as error:
            for lease in self._leases(claim):
                lease.settle()
            self._settle(claim, error)
            return
        finally:
            for lease in self._leases(claim):
                self.heartbeat.drop(lease)
        self.tally.count("done" if won else "stale")
        if won:
            seconds = round(now() - began, 3)
            log.info("job_done", job=str(claim.job_id), name=claim.name, seconds=seconds)

    def _leases(self, claim: Claim) -> list[Lease]:
        return [lease for lease in self.heartbeat.leases() if lease.claim is claim]

    def _settle(self, claim: Claim, error: Exception) -> None:
        """What the work could not end itself, because it failed before it began, is ended here."""
        retry = may_be_retried(error, claim.error_count, claim.max_attempts)
        self.tally.count("retried" if retry else "failed")
        log.error(
            "job_to_be_retried" if retry else "job_failed",
            job=str(claim.job_id),
            kind=claim.kind,
            name=claim.name,
            error=words(error),
        )
        with suppress(TidegateError):
            self._reach_database(lambda: self._write_end(claim, error, retry=retry))

    def _write_end(self, claim: Claim, error: Exception, *, retry: bool) -> None:
        with self._context.plane.connect() as control:
            if retry:
                # A table in use will be free soon, and says nothing against the job.
                busy = isinstance(error, BusyError)
                failures = 1 if busy else claim.error_count + 1
                told = self._jobs.give_back(
                    control,
                    claim,
                    actor=self._turns.worker_id,
                    error=words(error),
                    delay_seconds=self._backoff.seconds(failures, random.random()),
                )
            else:
                told = self._jobs.finish(
                    control,
                    claim,
                    JobStatus.FAILED,
                    actor=self._turns.worker_id,
                    error=words(error),
                )
            if told:
                record_end(self._context, control, claim, error)

    def _give_back(self, claim: Claim, reason: str) -> bool:
        return release_job(self._context, claim, actor=self._turns.worker_id, reason=reason)

    def _wait(self) -> None:
        """Until a job is announced, one ends, one's time comes, or it is time to look again."""
        connection = self._connection
        try:
            seconds = self._poll_seconds
            if connection is not None and self._free_places():
                with self.heartbeat.answered_soon(connection):
                    soon = self._jobs.seconds_to_next(
                        connection, project=self._turns.project, kinds=self._turns.kinds
                    )
                # One whose time came since the last claim is due now, unless another took it.
                if soon is not None:
                    seconds = min(seconds, max(soon, _SOONEST_SECONDS))
            if self._waker.wait(connection, seconds) and connection is not None:
                for _ in connection.notifies(timeout=0):
                    pass
        except psycopg.Error as error:
            self._lost_database(error)
            self._reach_database(self._listen)

    def _listen(self) -> None:
        connection = self._context.plane.connect()
        # Planned once, for queues and histories of any length: a plan that was made while they
        # were short would read and sort them whole.
        connection.execute(
            "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;"
            " SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
        )
        connection.prepare_threshold = 0
        channel = sql.Identifier(self._context.plane.channel("jobs"))
        with self.heartbeat.answered_soon(connection):
            connection.execute(sql.SQL("LISTEN {}").format(channel))
            self._give_back_unknown(connection, "answer lost")
        self._connection = connection

    def _give_back_unknown(self, connection: Connection, reason: str) -> int:
        """What we hold and no thread works on: quick jobs, and claims whose answer was lost."""
        held = self._jobs.held_by(connection, self._turns.worker_id)
        known = {lease.claim.attempt_id for lease in self.heartbeat.leases()}
        unknown = [attempt for attempt in held if attempt.attempt_id not in known]
        with connection.transaction():
            return sum(
                self._jobs.give_back(
                    connection, attempt, actor=f"{self._turns.worker_id}: {reason}"
                )
                for attempt in sorted(unknown, key=lambda one: one.job_id)
            )

    def _lost_database(self, error: Exception) -> None:
        log.warning("control_database_lost", error=str(error).splitlines()[0])
        if self._connection is not None:
            self._connection.close()

    def _reach_database(self, attempt: Callable[[], None]) -> None:
        """Try until it succeeds or the worker is told to stop."""
        pause = 0.1
        while not self._stopping.is_set():
            try:
                attempt()
                return
            except (psycopg.Error, TidegateError) as error:
                if isinstance(error, TidegateError) and not error.transient:
                    raise
                log.warning(
                    "control_database_unreachable",
                    error=str(error).splitlines()[0],
                    retry_in_seconds=pause,
                )
            self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_WAIT_FOR_DATABASE)


def _leave(lease: Lease, reason: str) -> bool:
    """First what others wait for; then Spark need not go on for nobody.

    An attempt that has just written its end, and is not dropped yet, has nothing left to lose.
    """
    left = lease.leave is not None and lease.leave(reason)
    if left or not lease.is_settling:
        lease.lose(reason)
    return left


def _log_stale(claim: Claim) -> None:
    log.warning("writeback_stale_attempt", job=str(claim.job_id), attempt=claim.attempt_id)
