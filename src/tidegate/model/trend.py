"""How a run compares with those before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

PREVIOUS = 30
"""so many runs are what is usual"""
LEAST = 5
"""with fewer than these nothing is usual yet"""
_ABOVE_MEDIAN = 1.2
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Trend:
    """The runs of one thing: how long the successful ones took, how often it failed."""

    kind: str
    name: str
    seconds: tuple[float, ...]
    """of the runs that were done, the oldest first"""
    failures: tuple[int, ...]
    """a week each, this one last"""
    last_status: str
    last_at: datetime

    @property
    def last_seconds(self) -> float | None:
        return self.seconds[-1] if self.seconds else None

    def percentile(self, share: float) -> float | None:
        """What so many of the runs took at most; None before the first that was done."""
        return percentile(self.seconds, share) if self.seconds else None

    @property
    def usual_seconds(self) -> float | None:
        """The middle of the runs before the last; None while there are too few."""
        before = self._before()
        return percentile(before, 0.5) if len(before) >= LEAST else None

    @property
    def is_slower(self) -> bool:
        """Whether the last run took longer than usual.

        It did when it lies above the 95th percentile of the 30 before it, and is more than a
        fifth above their median.
        """
        usual, last = self.usual_seconds, self.last_seconds
        if usual is None or last is None:
            return False
        return last > percentile(self._before(), 0.95) and last > usual * _ABOVE_MEDIAN

    def _before(self) -> tuple[float, ...]:
        return self.seconds[:-1][-PREVIOUS:]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies, drawn straight between two neighbours.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def sparkline(values: Sequence[float]) -> str:
    """Values as bars, the lowest and the highest at the ends of the scale.

    >>> sparkline([1, 2, 8])
    '▁▂█'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    if low == high:
        return _BARS[0] * len(values)
    highest = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * highest)] for value in values)
