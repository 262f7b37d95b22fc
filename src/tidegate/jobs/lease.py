"""The lease of one attempt, as its holder may count on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidegate.core.errors import StaleAttempt
from tidegate.core.log import log
from tidegate.jobs.job import Claim

Leave = Callable[[str], bool]
"""gives the job back, or ends it, when its process must go; False when it was not ours any more"""

_INTERRUPT_SECONDS = 1.0
_PATIENCE_SECONDS = 0.5


def now() -> float:
    """Seconds that go on while the machine sleeps, as the database's clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Runs out by this machine's own clock, unless it is renewed or lost before."""

    def __init__(
        self,
        claim: Claim,
        until: float,
        *,
        interrupt: Callable[[], None],
        leave: Leave | None = None,
    ) -> None:
        self.claim = claim
        self.leave = leave
        self._interrupt = interrupt
        self._until = until
        self._lost = threading.Event()
        self._settling = threading.Event()
        self._ended = threading.Event()
        self._interrupted = threading.Event()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    @property
    def is_settling(self) -> bool:
        return self._settling.is_set()

    def remaining_seconds(self) -> float:
        """How long it surely lasts, counted from before the last beat was sent."""
        return self._until - now()

    def renew(self, until: float) -> None:
        self._until = until

    def check_alive(self) -> None:
        """Raise StaleAttempt when the attempt was replaced or its lease may have run out."""
        if self.is_lost or self.remaining_seconds() <= 0:
            raise StaleAttempt(
                f"the attempt {self.claim.attempt_id} was replaced by another",
                "this one has published nothing more; see: tidegate status",
            )

    def lose(self, why: str) -> None:
        """Write and publish nothing more; the work under way is interrupted."""
        if self._lost.is_set():
            return
        self._lost.set()
        claim = self.claim
        log.warning("attempt_lost", job=str(claim.job_id), attempt=claim.attempt_id, why=why)
        # Spark may take its time to answer, and whoever calls this has other leases to watch.
        threading.Thread(target=self._stop_work, name="tidegate-interrupt", daemon=True).start()
        self._interrupted.wait(_PATIENCE_SECONDS)

    def settle(self) -> None:
        """The attempt gives its job up by itself: to find it gone from now on is no loss."""
        self._settling.set()

    def end(self) -> None:
        """The work has ended: there is nothing to interrupt any more."""
        self._ended.set()

    def _stop_work(self) -> None:
        """Work that was just about to start is not there yet to be interrupted, so try again."""
        while not self._ended.is_set():
            self._interrupt()
            self._interrupted.set()
            self._ended.wait(_INTERRUPT_SECONDS)
