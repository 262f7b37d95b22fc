"""The point below which no open source transaction can still add rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.model.cursor import Guarantee


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the source that holds the horizon back."""

    what: str
    since: datetime | None

    def __str__(self) -> str:
        since = f", open since {self.since:%Y-%m-%d %H:%M:%S%z}" if self.since else ""
        return f"{self.what}{since}"


@dataclass(frozen=True, slots=True)
class Horizon:
    """`high` is the last cursor value that may be read; None means nothing new may be read."""

    high: str | None
    guarantee: Guarantee
    because: str
    held_by: Session | None = None
    measured_at: datetime | None = None
    settles: bool = False
    """open transactions do not show, so that values count only once they have settled"""
    lag_seconds: float | None = None
    """of a standby: how far what it has replayed is behind the clock"""
