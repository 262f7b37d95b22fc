"""Watermark, cursor types, horizon, log positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.core.batch import Batch, BatchKind

SUMMARY = "tidegate."
"""before the names of what a load says of itself in a snapshot's summary"""


@dataclass(frozen=True, slots=True)
class LoadMark:
    """What a snapshot says of the load of a sync that it is."""

    update_id: str
    pipeline: str
    attempt_id: str
    fence: int
    generation: int
    version: int | None
    """of the watermark that it started from; None where an older release has written it"""
    start: str | None
    value: str | None
    """the watermark that it leaves"""
    position: tuple[str, ...] | None
    rows: int
    kind: str

    @classmethod
    def read(cls, update_id: str, summary: Mapping[str, str]) -> LoadMark | None:
        """None where it is none of a sync, but a DataFrame's."""
        told = {key.removeprefix(SUMMARY): value for key, value in summary.items()}
        if "pipeline" not in told:
            return None
        position = told.get("position")
        return cls(
            update_id,
            told["pipeline"],
            told.get("attempt-id", ""),
            int(told.get("fence", "0")),
            int(told.get("generation", "0")),
            int(told["version"]) if "version" in told else None,
            told.get("from") or None,
            told.get("to") or None,
            None if position is None else tuple(json.loads(position)),
            int(told.get("rows") or summary.get("added-records", "0")),
            told.get("kind", "range"),
        )

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among the loads of its pipeline."""
        return self.generation, -1 if self.version is None else self.version


@dataclass(frozen=True, slots=True)
class Watermark:
    """One row of etl_state; `position` is how far an unfinished tie or pass got: the value that it
    leads to, then a key."""

    pipeline: str
    table: str
    value: str | None = None
    cursor_type: str | None = None
    generation: int = 0
    version: int = 0
    rows_synced: int = 0
    position: tuple[str, ...] | None = None
    update_id: str | None = None
    updated_at: datetime | None = None
    declaration: Mapping[str, Any] | None = None
    """source, cursor and key of the sync that loaded up to here"""

    @property
    def is_refreshing(self) -> bool:
        """Whether a full refresh has begun here and nothing has moved since: rows of the time
        before it are still in the target, so nothing but the refresh itself may be loaded."""
        begun = (self.declaration or {}).get("refreshing")
        return begun is not None and begun == self.version

    def after(self, batch: Batch, rows: int, update_id: str) -> Watermark:
        """The watermark that publishing this batch leaves behind."""
        value, position = self.value, self.position
        if batch.kind in (
            BatchKind.RANGE,
            BatchKind.FULL,
            BatchKind.SNAPSHOTS,
            BatchKind.CHANGES,
        ):
            value, position = batch.high if batch.high is not None else value, None
        elif batch.kind in (BatchKind.TIE, BatchKind.WRITTEN):
            if batch.closes_tie:
                value, position = batch.high, None
            else:
                assert batch.high is not None
                assert batch.key_high is not None
                position = (batch.high, *batch.key_high)
        return replace(
            self,
            value=value,
            position=position,
            version=self.version + 1,
            rows_synced=self.rows_synced + rows,
            update_id=update_id,
        )

    def after_mark(self, load: LoadMark) -> Watermark:
        """The watermark that a load left behind, by what its snapshot says."""
        same = load.generation == self.generation
        return replace(
            self,
            value=load.value,
            position=load.position,
            generation=load.generation,
            version=(load.version or 0) + 1,
            rows_synced=load.rows + (self.rows_synced if same else 0),
            update_id=load.update_id,
        )


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


def lsn_value(text: str) -> int:
    """`16/B374D848` as the number that it is."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(value: int) -> str:
    """The number as Postgres prints a pg_lsn."""
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"
