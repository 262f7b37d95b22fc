"""Positions in the write-ahead log, as Postgres prints them."""

from __future__ import annotations


def lsn_value(text: str) -> int:
    """`16/B374D848` as the number that it is."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(value: int) -> str:
    """The number as Postgres prints a pg_lsn."""
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"
