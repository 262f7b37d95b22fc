"""How staged rows become rows of the target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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

    @property
    def replaces_part(self) -> bool:
        """Whether the rows take the place of a part of the target, as opposed to of their keys."""
        return self.mode is Mode.DELETE_INSERT and bool(self.within)

    def only_adds(self, *, full: bool) -> bool:
        """Whether the rows go beside what is there, whatever that is; twice would be twice."""
        return self.mode is Mode.APPEND and not full

    def allowed_rejects(self, rows: int) -> int:
        """How many of so many rows may be set aside; one at least, unless none is allowed."""
        return -int(-(self.reject_limit * rows) // 1)
