"""Durations as people write them: "180s", "10 minutes", "1h 30m", or a number of seconds."""

from __future__ import annotations

import re
from decimal import Decimal

EXAMPLES = '"180s", "10 minutes", "1h", "1 day" or "500ms"'

_UNITS = {
    ("ms", "millisecond", "milliseconds"): Decimal("0.001"),
    ("s", "sec", "secs", "second", "seconds"): Decimal(1),
    ("m", "min", "mins", "minute", "minutes"): Decimal(60),
    ("h", "hr", "hrs", "hour", "hours"): Decimal(3_600),
    ("d", "day", "days"): Decimal(86_400),
    ("w", "week", "weeks"): Decimal(604_800),
}
_SECONDS_PER = {name: seconds for names, seconds in _UNITS.items() for name in names}
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
        raise ValueError(f"a duration such as {EXAMPLES}")
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
