"""What comparing a source with its target found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Verdict(StrEnum):
    """How a comparison ended."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    CHANGED = "changed since the last run"
    """a source that is loaded whole each time, and will be again"""
    NEVER_RAN = "never ran"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows by what is wrong with them, with a few keys each; counts are at least these unless
    `complete`."""

    missing: int
    extra: int
    different: int
    complete: bool
    missing_keys: tuple[str, ...] = ()
    extra_keys: tuple[str, ...] = ()
    different_keys: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return self.missing + self.extra + self.different > 0

    @property
    def at_least(self) -> Difference:
        """The same where more may be wrong than was looked at."""
        return replace(self, complete=False)

    def plus(self, other: Difference) -> Difference:
        """Both together; keys are shown as long as there are only a few."""
        most = max(len(self.missing_keys), len(self.extra_keys), len(self.different_keys), 5)
        return Difference(
            self.missing + other.missing,
            self.extra + other.extra,
            self.different + other.different,
            self.complete and other.complete,
            (self.missing_keys + other.missing_keys)[:most],
            (self.extra_keys + other.extra_keys)[:most],
            (self.different_keys + other.different_keys)[:most],
        )


@dataclass(frozen=True, slots=True)
class Repair:
    """What was loaded again, and what had differed there."""

    job: str
    loads: int
    rows: int
    changed: int
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Verification:
    """One sync compared; `not_yet_loaded` rows lie above the watermark and were left out.

    `intact` says that the target holds what it should: all, or just what the last run loaded.
    """

    sync: str
    source: str
    target: str
    verdict: Verdict
    watermark: str | None = None
    source_rows: int = 0
    target_rows: int = 0
    not_yet_loaded: int = 0
    rejected: int = 0
    used_spark: bool = False
    snapshot: int | None = None
    """of a lake, at which it was compared"""
    difference: Difference | None = None
    intact: bool = False
    hint: str | None = None
    notes: tuple[str, ...] = ()
    repair: Repair | None = None
    """what was done before this comparison"""
