"""What a comparison or an explanation found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class Verdict(StrEnum):
    """How a comparison ended."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    CHANGED = "changed since the last run"
    """a source that is loaded whole each time, and will be again"""
    NEVER_RAN = "never ran"


@dataclass(frozen=True, slots=True)
class RowDifference:
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
    def at_least(self) -> RowDifference:
        """The same where more may be wrong than was looked at."""
        return replace(self, complete=False)

    def plus(self, other: RowDifference) -> RowDifference:
        """Both together; keys are shown as long as there are only a few."""
        most = max(len(self.missing_keys), len(self.extra_keys), len(self.different_keys), 5)
        return RowDifference(
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
    difference: RowDifference | None


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
    difference: RowDifference | None = None
    intact: bool = False
    hint: str | None = None
    notes: tuple[str, ...] = ()
    repair: Repair | None = None
    """what was done before this comparison"""


Values = Mapping[str, str | None]


class RowReason(StrEnum):
    """How a row of the target stands to its row of the source."""

    EQUAL = "equal"
    LOADED = "loaded"
    """there, and made by a transformation that was not run again to compare"""
    CHANGED = "changed since the last load"
    CHANGED_UNSEEN = "changed without raising its cursor"
    EDITED = "changed in the target"
    HELD_BACK = "above the horizon"
    NOT_YET = "not yet loaded"
    FILTERED = "filtered by where"
    NO_CURSOR = "without a cursor"
    REJECTED = "rejected"
    LATE = "came in below the watermark"
    SKIPPED = "skipped by a person"
    DELETED = "deleted at the source"
    TRANSFORMED = "dropped by the transformation"
    MAYBE_TRANSFORMED = "perhaps dropped by the transformation"
    UNKNOWN = "neither here nor there"


@dataclass(frozen=True, slots=True)
class RowLoad:
    """The load that brought a row, as the ledger has it; `others` could have brought it too."""

    update_id: str | None
    """None for a person's move"""
    attempt_id: str | None
    moved_at: datetime
    moved_by: str
    reason: str
    generation: int
    low: str | None
    high: str | None
    others: int = 0
    job_id: str | None = None
    is_certain: bool = False
    """the row itself says so"""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that was set aside: which checks, when, in which load."""

    failed: tuple[str, ...]
    rejected_at: datetime
    update_id: str


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """One column, as text on both sides."""

    column: str
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One row explained."""

    sync: str
    source: str
    target: str
    key: Values
    reason: RowReason
    sentence: str
    hint: str | None = None
    source_row: Values | None = None
    target_row: Values | None = None
    differences: tuple[ColumnDifference, ...] = ()
    watermark: str | None = None
    horizon: str | None = None
    carrier: RowLoad | None = None
    rejection: Rejection | None = None
    snapshot: int | None = None
    """of a lake, at which it was read"""
    notes: tuple[str, ...] = ()
