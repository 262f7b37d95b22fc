"""Why one row of a target is as it is, or is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

Values = Mapping[str, str | None]


class Reason(StrEnum):
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
class Carrier:
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
    reason: Reason
    sentence: str
    hint: str | None = None
    source_row: Values | None = None
    target_row: Values | None = None
    differences: tuple[ColumnDifference, ...] = ()
    watermark: str | None = None
    horizon: str | None = None
    carrier: Carrier | None = None
    rejection: Rejection | None = None
    snapshot: int | None = None
    """of a lake, at which it was read"""
    notes: tuple[str, ...] = ()
