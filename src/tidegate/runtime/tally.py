"""How the jobs of a worker ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
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
