"""What became of events that were claimed: of one batch, and of a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """One committed batch."""

    claimed: int
    done: int
    failed: int
    facts: int
    """rows that came to the facts; the other done events were there already"""
    missing_months: tuple[date, ...] = ()
    """months without a partition, whose events stay pending"""

    @property
    def left_pending(self) -> int:
        return self.claimed - self.done - self.failed


@dataclass(frozen=True, slots=True)
class Processed:
    """What a run of the second phase did."""

    claimed: int
    done: int
    failed: int
    facts: int
    batches: int
    left_pending: int
    """events that wait at the end, whoever may hold them"""
    seconds: float

    @property
    def duplicates(self) -> int:
        """Events that are done, and whose fact was there already."""
        return self.done - self.facts

    @classmethod
    def of(cls, ends: Sequence[BatchEnd], *, left_pending: int, seconds: float) -> Processed:
        return cls(
            claimed=sum(one.claimed for one in ends),
            done=sum(one.done for one in ends),
            failed=sum(one.failed for one in ends),
            facts=sum(one.facts for one in ends),
            batches=len(ends),
            left_pending=left_pending,
            seconds=seconds,
        )
