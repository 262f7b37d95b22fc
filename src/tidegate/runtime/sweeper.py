"""The sweeper: takes back what the dead held, ends half-done cancels, removes what is left over."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial

import psycopg

from tidegate.control.cancels import Cancelling, Cancels
from tidegate.control.dead import DeadAttempt, DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.control.needs import Needs
from tidegate.control.retention import prune
from tidegate.control.schedules import Schedules
from tidegate.control.sweeps import Sweeps
from tidegate.errors import TidegateError
from tidegate.log import log
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.runtime.cancel import end_cancel
from tidegate.runtime.lease import now
from tidegate.runtime.reclaim import bury
from tidegate.runtime.recording import settle_all, tidy_history
from tidegate.runtime.targets import destination_of_job

_TIDY_SECONDS = 600.0
_MOST_CHUNKS = 20


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    reclaimed: int = 0
    cancelled: int = 0
    staging: int = 0
    forgotten: int = 0


class Sweeper:
    """Sweeps for one project; any number may, at the same time, since each row is taken singly."""

    def __init__(
        self, context: Context, *, actor: str, targets: Callable[[], Iterable[Endpoint]]
    ) -> None:
        self._context = context
        self._actor = actor
        self._targets = targets
        self._tidy_at = now() + _TIDY_SECONDS * random.random()

    def run_once(self, control: Connection, *, tidy: bool = False) -> Swept:
        """One sweep; a job that cannot be swept is told and does not stop the others.

        What has no hurry, staging tables and old jobs, is tidied up every ten minutes.
        """
        project = self._context.settings.project.name
        dead = DeadAttempts(self._context.plane).list(control, project=project)
        half = Cancels(self._context.plane).list_half_done(control, project)
        reclaimed = sum(self._try(one, partial(self._reclaim, control, one)) for one in dead)
        cancelled = sum(self._try(one, partial(self._end_cancel, control, one)) for one in half)
        Needs(self._context.plane).settle_all(control, actor=self._actor)
        settle_all(self._context.plane, control, project)
        Sweeps(self._context.plane).note(control, project, self._actor)
        if now() < self._tidy_at and not tidy:
            return Swept(reclaimed, cancelled)
        self._tidy_at = now() + _TIDY_SECONDS
        tidy_history(self._context.plane, control, self._context.settings.history.keep_seconds)
        return Swept(reclaimed, cancelled, self._drop_staging(control), self._forget(control))

    def _reclaim(self, control: Connection, dead: DeadAttempt) -> bool:
        context = self._context
        destination = destination_of_job(context, dead.kind, dead.payload)
        if destination is None:
            return DeadAttempts(context.plane).reclaim(control, dead, self._actor)
        return bury(
            context.plane,
            control,
            context.control_id(),
            destination,
            dead,
            self._actor,
            context.settings.worker.backoff,
        )

    def _end_cancel(self, control: Connection, half: Cancelling) -> bool:
        end_cancel(self._context, control, half, actor=self._actor)
        return True

    def _try(self, one: DeadAttempt | Cancelling, sweep: Callable[[], bool]) -> bool:
        try:
            return sweep()
        except TidegateError as error:
            log.warning("job_not_swept", job=str(one.job_id), error=error.message)
            return False

    def _forget(self, control: Connection) -> int:
        """Forget jobs that ended long ago, some at a time."""
        keep = self._context.settings.worker.keep_jobs_seconds
        Schedules(self._context.plane, self._context.settings.project.name).prune(control, keep)
        forgotten = 0
        for _ in range(_MOST_CHUNKS):
            chunk = prune(control, self._context.plane, keep)
            forgotten += chunk
            if not chunk:
                break
        return forgotten

    def _drop_staging(self, control: Connection) -> int:
        """Drop what this control plane's dead attempts staged."""
        jobs, dropped = Jobs(self._context.plane), 0
        swept: set[Endpoint | str] = set()
        for target in self._targets():
            try:
                # A database is swept as a whole, a lake table by table.
                lake = self._context.is_lake(target.connection)
                place: Endpoint | str = target if lake else target.connection
                if place in swept:
                    continue
                swept.add(place)
                destination = self._context.destination(target)
                dropped += destination.sweep(lambda: jobs.live_attempts(control))
            except (TidegateError, psycopg.Error) as error:
                reason = str(error).splitlines()[0]
                log.warning("staging_not_swept", connection=target.connection, error=reason)
        return dropped


class SweepLoop:
    """A thread that sweeps at an interval, over a session of its own."""

    def __init__(self, sweeper: Sweeper, context: Context, interval_seconds: float) -> None:
        self.sweeper = sweeper
        self._context = context
        self._interval = interval_seconds
        self._control: Connection | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def sweep(self) -> None:
        """One sweep; what goes wrong is told, and tried again the next time."""
        try:
            if self._control is None or self._control.closed:
                self._control = self._context.plane.connect()
            swept = self.sweeper.run_once(self._control)
        except (psycopg.Error, TidegateError) as error:
            log.warning("sweep_failed", error=str(error).splitlines()[0])
            if self._control is not None:
                self._control.close()
            return
        if swept != Swept():
            log.info("swept", **asdict(swept))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.sweep()
            # Not all workers at once.
            self._stopping.wait(self._interval * random.uniform(0.75, 1.25))
        if self._control is not None:
            self._control.close()
