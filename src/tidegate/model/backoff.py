"""How long a failed job waits before it is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_seconds` to `longest_seconds`, each spread by jitter.

    The jitter keeps jobs that failed together, because one database was down, from coming back
    together.
    """

    first_seconds: float = 5.0
    longest_seconds: float = 600.0

    def seconds(self, failures: int, chance: float) -> float:
        """The wait after this many failures; `chance` is a random number from 0 to 1."""
        if failures <= 0:
            return 0.0
        # Shifting by more than this is beyond any limit, and floats end somewhere.
        whole = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 60))
        return whole * (0.5 + 0.5 * chance)
