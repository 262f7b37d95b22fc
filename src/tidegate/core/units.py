"""Durations, sizes, counts and waiting times, read and printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal


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


DURATION_EXAMPLES = '"180s", "10 minutes", "1h", "1 day" or "500ms"'

_DURATION_UNITS = {
    ("ms", "millisecond", "milliseconds"): Decimal("0.001"),
    ("s", "sec", "secs", "second", "seconds"): Decimal(1),
    ("m", "min", "mins", "minute", "minutes"): Decimal(60),
    ("h", "hr", "hrs", "hour", "hours"): Decimal(3_600),
    ("d", "day", "days"): Decimal(86_400),
    ("w", "week", "weeks"): Decimal(604_800),
}
_SECONDS_PER = {name: seconds for names, seconds in _DURATION_UNITS.items() for name in names}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,6})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)[\s,]*")
_BARE = re.compile(_NUMBER)
# A century: far beyond any sensible setting, and exact in every type it is converted to.
_LONGEST_SECONDS = Decimal(36_525 * 86_400)


def parse_duration(value: object) -> float:
    """Return the seconds in `value`; ValueError says what was expected.

    >>> parse_duration("10 minutes")
    600.0
    """
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"a duration such as {DURATION_EXAMPLES}")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Return `seconds` as text that `parse_duration` reads back, to the millisecond.

    >>> format_duration(5400)
    '90m'
    """
    milliseconds = round(Decimal(repr(float(seconds))) * 1_000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds % size == 0 and milliseconds >= size:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def _seconds(value: object) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # repr keeps 0.1 as 0.1; nan and inf become Decimals that every comparison refuses.
        number = Decimal(repr(value)) if abs(value) < 10**15 else None
        return number if number is not None and number.is_finite() else None
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if _BARE.fullmatch(text):
        return Decimal(text)
    total, position = Decimal(0), 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or part[2] not in _SECONDS_PER:
            return None
        total += Decimal(part[1]) * _SECONDS_PER[part[2]]
        position = part.end()
    return total if text else None


SIZE_EXAMPLES = '"128MB", "512KB", "1GB" or a number of bytes'

# As Iceberg and Postgres count them: a kilobyte has 1,024 bytes however it is written.
_SIZE_UNITS = {"": 0, "b": 0, "k": 1, "kb": 1, "kib": 1, "m": 2, "mb": 2, "mib": 2}
_SIZE_UNITS |= {"g": 3, "gb": 3, "gib": 3, "t": 4, "tb": 4, "tib": 4}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-z]*)")
_MOST = 2**63 - 1


def size_from(least: str) -> Callable[[object], int]:
    """The check of a setting: a size that is not below `least`."""

    def check(value: object) -> int:
        found = parse_size(value)
        if found < parse_size(least):
            raise ValueError(f'a size of {least} at least, such as "128MB"')
        return found

    return check


def parse_size(value: object) -> int:
    """Return the bytes in `value`; ValueError says what was expected.

    >>> parse_size("128MB")
    134217728
    """
    found: Decimal | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        found = Decimal(value)
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value.strip().lower().replace("_", ""))
        if match is not None and match[2] in _SIZE_UNITS:
            found = Decimal(match[1]) * 1024 ** _SIZE_UNITS[match[2]]
    if found is None or not 0 <= found <= _MOST:
        raise ValueError(f"a size such as {SIZE_EXAMPLES}")
    return int(found)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_seconds` to `longest_seconds`, each spread by jitter.

    The jitter keeps jobs that failed together, because one database was down, from coming back
    together.
    """

    first_seconds: float = 5.0
    longest_seconds: float = 600.0

    def seconds(self, failures: int, chance: float) -> float:
        """The wait after this many failures; `chance` is a random number from 0 to 1."""
        if failures <= 0:
            return 0.0
        # Shifting by more than this is beyond any limit, and floats end somewhere.
        whole = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 60))
        return whole * (0.5 + 0.5 * chance)
