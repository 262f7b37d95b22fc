"""What a mode can do with staged rows in an Iceberg table: one statement, one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.config.sync import Rules
from tidegate.core.shape import Shape
from tidegate.iceberg import statements


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is known of staged rows, so that a merge reads less."""

    bounds: Sequence[object] = ()
    """the lowest and the highest value of each part of the key"""
    all_newer: bool = False
    """each row's cursor is above those of all rows that are there"""


@dataclass(frozen=True, slots=True)
class IcebergStatement:
    """Staged rows on their way into an Iceberg table, and the statements to choose from."""

    into: str
    """the branch, or the table"""
    rows: str
    shape: Shape
    rules: Rules
    full: bool
    """everything else leaves the table"""
    narrow: Callable[[], Narrowing] = Narrowing

    @property
    def newest_wins(self) -> bool:
        return self.rules.newest_wins and not self.full

    def insert(self) -> str:
        return statements.insert_rows(self.into, self.rows, self.shape)

    def overwrite(self) -> str:
        """The rows in place of all that is there."""
        return statements.insert_rows(self.into, self.rows, self.shape, overwrite=True)

    def replace_part(self) -> str:
        return statements.replace_part(self.into, self.rows, self.shape, self.rules.within)

    def merge(self, *, newest_wins: bool) -> str:
        """Upsert by key; a full batch also removes what it does not hold."""
        known = Narrowing() if self.full else self.narrow()
        return statements.merge_rows(
            self.into,
            self.rows,
            self.shape,
            newest_wins=newest_wins,
            full=self.full,
            bounds=known.bounds,
            all_newer=known.all_newer,
        )
