"""How staged rows become rows of the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tidegate.errors import RemovalRefused
from tidegate.model.batch import BatchKind

# Of a table as small as this nobody is asked whether its rows may go.
_GUARDED_ROWS = 100


class Mode(StrEnum):
    """The load patterns."""

    MERGE = "merge"
    """insert new keys, update changed ones"""
    APPEND = "append"
    """add rows; with a key, every version of a row, and a view of the newest"""
    DELETE_INSERT = "delete_insert"
    """delete the batch's keys, then insert its rows"""
    REPLACE = "replace"
    """the whole table, each time"""


class Duplicates(StrEnum):
    """What two rows of one batch with one key mean."""

    REFUSE = "refuse"
    NEWEST = "newest"


class Drift(StrEnum):
    """What happens when the columns of the source change."""

    EVOLVE = "evolve"
    """the target follows, as far as nothing is lost"""
    FREEZE = "freeze"
    """the load is refused"""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that every row must meet, in the SQL of the destination; NULL counts as met."""

    name: str
    condition: str


@dataclass(frozen=True, slots=True)
class RemovalLimit:
    """Which share of a target a load may remove unasked."""

    share: float
    allow: str
    """what says that more is meant"""

    @classmethod
    def of(cls, share: float, allow: str) -> RemovalLimit | None:
        """The limit; None where everything may go."""
        return cls(share, allow) if share < 1 else None

    def concerns(self, removed: int) -> bool:
        """Whether so many rows could be too many, whatever the size of the target."""
        return removed > self.share * _GUARDED_ROWS

    def is_exceeded(self, removed: int, rows: int) -> bool:
        """Whether `removed` of all the `rows` of a target are too many."""
        # The quotient, and not a product, is the very number that somebody wrote as the share.
        return rows >= _GUARDED_ROWS and removed / rows > self.share

    def check(self, target: object, removed: int, rows: int) -> None:
        """Refuse to remove `removed` of all the `rows` of a target."""
        if self.is_exceeded(removed, rows):
            raise RemovalRefused(
                f"{removed:,} of the {rows:,} rows of {target} would be removed; [safety] "
                f"max_removed allows {self.share:.4g} of them, so nothing was changed",
                f"see that the source holds all it should; if it does: {self.allow}",
            )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a load does besides moving rows."""

    mode: Mode = Mode.MERGE
    duplicates: Duplicates = Duplicates.REFUSE
    before_sql: tuple[str, ...] = ()
    after_sql: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    reject_limit: float = 0.05
    """the share of a batch that may fail its checks"""
    drift: Drift = Drift.EVOLVE
    within: tuple[tuple[str, Any], ...] = ()
    """the part of the target that delete_insert replaces: columns, and the value of each"""
    newest_wins: bool = True
    """a merge leaves rows alone whose cursor is above that of the row that comes"""
    removal: RemovalLimit | None = None
    """how much of what is there a load of everything may remove; None where it is not asked"""

    @property
    def replaces_part(self) -> bool:
        """Whether the rows take the place of a part of the target, as opposed to of their keys."""
        return self.mode is Mode.DELETE_INSERT and bool(self.within)

    def for_batch(self, kind: BatchKind, *, key_is_unique: bool) -> Rules:
        """The rules of one batch: what a lookback reads replaces what is there.

        It reads the row as it is now, later than any load before, whichever cursor a clock that is
        wrong has given it. Where a key occurs more than once, the cursor has to decide.
        """
        if kind is BatchKind.LOOKBACK and key_is_unique:
            return replace(self, newest_wins=False)
        return self

    def only_adds(self, *, full: bool) -> bool:
        """Whether the rows go beside what is there, whatever that is; twice would be twice."""
        return self.mode is Mode.APPEND and not full

    def allowed_rejects(self, rows: int) -> int:
        """How many of so many rows may be set aside; one at least, unless none is allowed."""
        return -int(-(self.reject_limit * rows) // 1)
