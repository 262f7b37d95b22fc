"""Ranges of keys: the keys of a table cut into many parts by the last bits of their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyRange:
    """One part, and how many rows lie in it on the side that has more of them."""

    value: int
    rows: int


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Parts of one cut: keys whose hash ends, in so many bits, in one of these values."""

    bits: int
    ranges: tuple[KeyRange, ...]

    @property
    def values(self) -> list[int]:
        return [one.value for one in self.ranges]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        """Tells them apart from any others."""
        digest = hashlib.sha256(repr((self.bits, self.values)).encode()).hexdigest()[:12]
        return f"{len(self.ranges):,} of {1 << self.bits:,} key ranges ({digest})"

    def passes(self, most_rows: int) -> Iterator[KeyRanges]:
        """The same in groups of at most so many rows, unless a single one has more."""
        chosen: list[KeyRange] = []
        size = 0
        for one in self.ranges:
            if chosen and size + one.rows > most_rows:
                yield KeyRanges(self.bits, tuple(chosen))
                chosen, size = [], 0
            chosen.append(one)
            size += one.rows
        if chosen:
            yield KeyRanges(self.bits, tuple(chosen))

    def finer_bits(self, most_groups: int, most_bits: int) -> int:
        """How many bits cut these ranges into no more than so many."""
        bits = self.bits
        while bits < most_bits and len(self.ranges) << (bits + 1 - self.bits) <= most_groups:
            bits += 1
        return bits


def differing(
    left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]]
) -> Sequence[KeyRange]:
    """The parts whose sums are not the same, in order."""
    nothing = (0, 0)
    return tuple(
        KeyRange(value, max(left.get(value, nothing)[0], right.get(value, nothing)[0]))
        for value in sorted(left.keys() | right.keys())
        if left.get(value) != right.get(value)
    )
