"""A batch, the plan of its load, staged writes, the result, late rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any


class BatchKind(StrEnum):
    """Why these rows belong together."""

    RANGE = "range"
    """rows with low < cursor <= high"""
    TIE = "tie"
    """rows with cursor = high and key_low < key <= key_high: a tie larger than batch_rows"""
    LOOKBACK = "lookback"
    """rows at or below the watermark that may have arrived late"""
    NULLS = "nulls"
    """rows without a cursor value"""
    FULL = "full"
    """everything, of which up to high nothing can come late; what is not in it leaves the target"""
    FRAME = "frame"
    """the rows of a DataFrame, which have no place in a source"""
    SNAPSHOTS = "snapshots"
    """what the commits of a lake's table changed after the snapshot low, up to high"""
    CHANGES = "changes"
    """what whole transactions changed that ended in the log after low, up to high"""
    WRITTEN = "written"
    """rows written by transaction low or a later one, and key_low < key <= key_high; up to high
    everything is in once all keys are"""
    REPAIR = "repair"
    """ranges of keys as the source has them, and which keys it does not have"""
    BACKFILL = "backfill"
    """rows with low <= cursor < high, wherever the watermark is"""


@dataclass(frozen=True, slots=True)
class Batch:
    """A slice by cursor, and inside a tie by key; bounds are text as the source prints them."""

    kind: BatchKind
    low: str | None = None
    high: str | None = None
    key_low: tuple[str, ...] | None = None
    key_high: tuple[str, ...] | None = None
    closes_tie: bool = False
    rows: int = 0
    is_last: bool = False
    """nothing more was to be had when it was planned"""
    reached: str | None = None
    """of written rows: how far the cursor had got, below which only the lookback is looked at"""
    tables: tuple[int, ...] | None = None
    """of written rows: tables other than these are new, and all their rows belong to it"""
    part: str | None = None
    """of a repair, which ranges of keys"""

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes this batch this batch; the rest is only knowledge about it."""
        found = (self.kind.value, self.low, self.high, self.key_low, self.key_high, self.closes_tie)
        if self.kind is BatchKind.WRITTEN:
            return (*found, self.reached, self.tables)
        return found if self.part is None else (*found, self.part)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Batch:
        values = dict(data)
        values["kind"] = BatchKind(values["kind"])
        for name in ("key_low", "key_high", "tables"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return cls(**values)

    def __str__(self) -> str:
        if self.kind is BatchKind.NULLS:
            return "rows without a cursor"
        if self.kind is BatchKind.TIE:
            return f"= {self.high}, keys ({_bound(self.key_low)}, {_bound(self.key_high)}]"
        if self.kind is BatchKind.WRITTEN:
            since = "all rows" if self.low is None else f"written since {self.low}"
            if self.key_low is None and self.key_high is None:
                return since
            return f"{since}, keys ({_bound(self.key_low)}, {_bound(self.key_high)}]"
        if self.kind is BatchKind.REPAIR:
            return f"repair of {self.part}"
        if self.kind is BatchKind.BACKFILL:
            return f"backfill [{self.low}, {self.high})"
        label = "" if self.kind is BatchKind.RANGE else f"{self.kind} "
        return f"{label}({self.low or '-∞'}, {self.high or '∞'}]"


def _bound(key: tuple[str, ...] | None) -> str:
    return "…" if key is None else ", ".join(key)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a bounded slice ends: `high` closes the range, or the whole slice is one tie."""

    high: str | None
    rows: int
    is_tie: bool = False


def cut(rows: int, limit: int, last: str | None, before_last: str | None) -> Cut:
    """Bound a slice of which at most limit + 1 rows were looked at in cursor order.

    `rows` were seen, `last` is the highest cursor among them, `before_last` the highest one
    strictly below it. More than `limit` rows means that the last value may be cut in the middle,
    so the range ends before it; when nothing lies before it, the slice is one oversized tie.
    """
    if rows <= limit:
        return Cut(last, rows)
    if before_last is not None:
        return Cut(before_last, limit)
    return Cut(last, limit, is_tie=True)


KEPT = "late"
"""under which it is remembered with the watermark"""
_MOST = 20


@dataclass(frozen=True, slots=True)
class Late:
    """Late rows of one load that changed the target; how far behind in seconds, or in steps of an
    integer cursor."""

    rows: int
    half_within: float
    farthest: float
    at: str = ""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The same over the last loads that had any."""

    rows: int
    loads: int
    half_within: float
    farthest: float
    since: datetime | None
    in_seconds: bool

    @classmethod
    def recorded(
        cls, declaration: Mapping[str, Any] | None, *, in_seconds: bool
    ) -> Lateness | None:
        """What is remembered with a watermark, if any row was late."""
        found = _kept(declaration)
        if not found:
            return None
        rows = sum(one.rows for one in found)
        since = found[0].at
        return cls(
            rows=rows,
            loads=len(found),
            half_within=_middle(found),
            farthest=max(one.farthest for one in found),
            since=datetime.fromisoformat(since) if since else None,
            in_seconds=in_seconds,
        )


def remember(
    before: Mapping[str, Any] | None,
    declaration: Mapping[str, Any] | None,
    late: Late | None,
    at: datetime,
) -> Mapping[str, Any] | None:
    """What is remembered after a load: the last few, also where this one had none."""
    known = _kept(before)
    if late is not None:
        known = [*known, replace(late, at=at.isoformat(timespec="seconds"))][-_MOST:]
    if not known or declaration is None:
        return declaration
    return {**declaration, KEPT: [asdict(one) for one in known]}


def _kept(declaration: Mapping[str, Any] | None) -> list[Late]:
    return [Late(**one) for one in (declaration or {}).get(KEPT, ())]


def _middle(found: Sequence[Late]) -> float:
    """The middle of the loads' own middles, by how many rows each had."""
    ordered = sorted(found, key=lambda one: one.half_within)
    half, seen = sum(one.rows for one in ordered) / 2, 0
    for one in ordered:
        seen += one.rows
        if seen >= half:
            return one.half_within
    return 0.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A batch with its identity and the watermark it was planned on; stored with the job."""

    update_id: str
    batch: Batch
    generation: int
    version: int

    def to_json(self) -> dict[str, Any]:
        return {
            "update_id": self.update_id,
            "batch": self.batch.to_json(),
            "generation": self.generation,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadPlan:
        return cls(
            data["update_id"],
            Batch.from_json(data["batch"]),
            int(data["generation"]),
            int(data["version"]),
        )


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """What one call of the writer left in the destination: its own table, and how many rows."""

    write_id: str
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did; `already` means an earlier attempt had done it."""

    rows: int
    changed: int
    already: bool = False
    rejected: int = 0
    late: Late | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One finished load, as told to the user."""

    update_id: str
    batch: Batch
    rows: int
    changed: int
    seconds: float
    already: bool = False
    rejected: int = 0
    notes: tuple[str, ...] = ()
    """what the user should know about the target"""
    late: Late | None = None
    """rows that came after the watermark had passed them"""

    @property
    def detail(self) -> dict[str, Any]:
        """What is kept of it in the history."""
        return {
            "update_id": self.update_id,
            "batch": str(self.batch),
            "rows": self.rows,
            "changed": self.changed,
            "rejected": self.rejected,
            "seconds": round(self.seconds, 3),
        }
