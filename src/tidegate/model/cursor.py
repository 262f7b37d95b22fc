"""Cursor types: which columns can order a sync, and what is known about their order."""

from __future__ import annotations

from enum import StrEnum


class CursorType(StrEnum):
    """The Postgres types that may carry a watermark; the value is the type's SQL name."""

    TIMESTAMPTZ = "timestamp with time zone"
    TIMESTAMP = "timestamp without time zone"
    DATE = "date"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    XID8 = "xid8"

    @property
    def is_integer(self) -> bool:
        return self in (CursorType.SMALLINT, CursorType.INTEGER, CursorType.BIGINT)

    @property
    def is_number(self) -> bool:
        """Whether values are whole numbers, though not always ones to calculate with."""
        return self.is_integer or self is CursorType.XID8

    @classmethod
    def of(cls, type_name: str) -> CursorType | None:
        """The cursor type of a column, from its type as Postgres formats it (precision ignored)."""
        plain = type_name
        if "(" in plain:
            head, _, rest = plain.partition("(")
            plain = head + rest.partition(")")[2]
        try:
            return cls(" ".join(plain.split()))
        except ValueError:
            return None


class NullPolicy(StrEnum):
    """What happens to rows whose cursor is NULL."""

    RAISE = "raise"
    INCLUDE = "include"
    EXCLUDE = "exclude"


class Guarantee(StrEnum):
    """How far the promise "the watermark never passes unloaded rows" goes for a sync."""

    EXACT = "exact"
    SETTLED = "settled"
    BOUNDED = "bounded"
