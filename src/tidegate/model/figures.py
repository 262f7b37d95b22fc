"""Figures in the words of people."""

from __future__ import annotations


def in_bytes(size: float) -> str:
    """A size in the unit that suits it.

    >>> in_bytes(1258291)
    '1.2 MB'
    """
    value = float(size)
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    exact = value < 10 and value != int(value)
    return f"{value:.1f} {units[0]}" if exact else f"{value:,.0f} {units[0]}"


def in_time(seconds: float) -> str:
    """A length of time in the unit that suits it.

    >>> in_time(5400)
    '90 minutes'
    """
    for limit, unit, name in ((120, 1, "second"), (7200, 60, "minute"), (172800, 3600, "hour")):
        if seconds < limit:
            return counted(round(seconds / unit), name)
    return counted(round(seconds / 86400), "day")


def every(seconds: float) -> str:
    """How often: "every hour", "every 7 days"."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds == unit:
            return f"every {name}"
    return f"every {in_time(seconds)}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "data file"), counted(1200, "data file")
    ('1 data file', '1,200 data files')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
