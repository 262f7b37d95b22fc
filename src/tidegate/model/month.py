"""Months, by which tables that only grow are cut into parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_NAME = re.compile(r"_(\d{4})_(\d{2})\Z")


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """One month of UTC.

    >>> Month(2026, 12).next
    Month(year=2027, number=1)
    """

    year: int
    number: int

    @classmethod
    def of(cls, moment: datetime) -> Month:
        """The month that a moment lies in."""
        at = moment.astimezone(UTC)
        return cls(at.year, at.month)

    @classmethod
    def of_partition(cls, name: str) -> Month | None:
        """The month in the name of a partition; None for a name of another making."""
        found = _NAME.search(name)
        if found is None or not 1 <= int(found[2]) <= 12:
            return None
        return cls(int(found[1]), int(found[2]))

    @property
    def next(self) -> Month:
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after it."""
        return self.next.start

    def partition(self, table: str) -> str:
        """The name of a table's part for this month."""
        return f"{table}_{self.year:04}_{self.number:02}"
