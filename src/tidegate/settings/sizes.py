"""Sizes as people write them: "128MB", "512 KiB", or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

EXAMPLES = '"128MB", "512KB", "1GB" or a number of bytes'

# As Iceberg and Postgres count them: a kilobyte has 1,024 bytes however it is written.
_UNITS = {"": 0, "b": 0, "k": 1, "kb": 1, "kib": 1, "m": 2, "mb": 2, "mib": 2}
_UNITS |= {"g": 3, "gb": 3, "gib": 3, "t": 4, "tb": 4, "tib": 4}
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
        if match is not None and match[2] in _UNITS:
            found = Decimal(match[1]) * 1024 ** _UNITS[match[2]]
    if found is None or not 0 <= found <= _MOST:
        raise ValueError(f"a size such as {EXAMPLES}")
    return int(found)
