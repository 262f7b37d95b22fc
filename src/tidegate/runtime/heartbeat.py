"""The heartbeat of an attempt: renews its lease, and stops the work before the lease runs out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg

from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.errors import StaleAttempt, TidegateError
from tidegate.log import log
from tidegate.model.job import Claim
from tidegate.postgres.connect import Connection


def now() -> float:
    """Seconds that go on while the machine sleeps, as the database's clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heartbeat:
    """A thread that owns the worker's session: its advisory lock dies with it."""

    def __init__(
        self,
        connection: Connection,
        jobs: Jobs,
        worker: Worker,
        claim: Claim,
        *,
        lease_seconds: float,
        interval_seconds: float,
        interrupt: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._worker = worker
        self._claim = claim
        self._lease = lease_seconds
        self._interval = interval_seconds
        self._interrupt = interrupt
        self._leased_until = now() + lease_seconds
        self._stopping = threading.Event()
        self._stale = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tidegate-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def connection(self) -> Connection:
        return self._connection

    def remaining_seconds(self) -> float:
        """How long the lease surely lasts, counted from before the last beat was sent."""
        return self._leased_until - now()

    def check_alive(self) -> None:
        """Raise StaleAttempt when the attempt was replaced or its lease may have run out."""
        if self._stale.is_set() or self.remaining_seconds() <= 0:
            raise StaleAttempt(
                f"the attempt {self._claim.attempt_id} was replaced by another",
                "this one has published nothing more; see: tidegate status",
            )

    def beat(self) -> None:
        """Renew once; a lost session is opened again, a lost attempt is final."""
        sent_at = now()
        try:
            if self._connection.closed:
                self._rejoin()
            if self._jobs.beat(self._connection, self._claim, self._lease):
                self._leased_until = sent_at + self._lease
                Workers(self._jobs.plane).beat(self._connection, self._worker)
            else:
                self._give_up("replaced")
        except (psycopg.Error, TidegateError) as error:
            log.warning("heartbeat_failed", error=str(error).splitlines()[0])
            self._connection.close()
            if self.remaining_seconds() < self._interval:
                self._give_up("lease running out")

    def _loop(self) -> None:
        while not self._stopping.wait(self._wait_seconds()):
            if self._stale.is_set():
                return
            self.beat()

    def _wait_seconds(self) -> float:
        # After a failed beat there is no time to lose.
        return min(self._interval, 1.0) if self._connection.closed else self._interval

    def _rejoin(self) -> None:
        self._connection = self._jobs.plane.connect()
        Workers(self._jobs.plane).rejoin(self._connection, self._worker)

    def _give_up(self, why: str) -> None:
        log.warning(
            "attempt_lost", job=str(self._claim.job_id), attempt=self._claim.attempt_id, why=why
        )
        self._stale.set()
        self._interrupt()
