"""Times and spans as the commands print them."""

from __future__ import annotations

from datetime import datetime


def span(seconds: float) -> str:
    """A length of time in the unit that suits it.

    >>> span(5400)
    '90 min'
    """
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def moment(at: datetime | None) -> str:
    """A moment, which is always shown in UTC."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
