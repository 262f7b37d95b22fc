"""How late rows come: how far below the watermark those were that a lookback still found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

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
