"""Transaction ids: the 64-bit one of a row of which only the lower half is stored."""

from __future__ import annotations

EPOCH = 1 << 32
# An id further back than this is brought forward before the lower halves can come round again.
FAR = 1 << 30


def widen(xid: int, next_xid: int) -> int:
    """The greatest 64-bit id below `next_xid` that has this lower half.

    A row that a snapshot shows was written before the snapshot's xmax, so this is its id, unless it
    is older than a whole round: then it looks newer than it is, and is read once too often.
    """
    newest = next_xid - 1
    return newest - (newest - xid) % EPOCH


def is_since(xid: int, low: int, next_xid: int) -> bool:
    """Whether a row with this 32-bit id may have been written by `low` or a later transaction."""
    return widen(xid, next_xid) >= low
