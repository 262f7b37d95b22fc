"""What each mode does with staged files in a lake: one commit, decided before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.lake import statements
from tidegate.model.rules import Duplicates, Mode, Rules
from tidegate.model.shape import Shape


@dataclass(frozen=True, slots=True)
class LakeApplication:
    """Staged rows on their way into one table."""

    shape: Shape
    rules: Rules
    full: bool
    """everything else leaves the table"""
    has_rows: bool
    is_plain: bool
    """any file may be added to the table"""
    is_classic: bool
    """Iceberg's own interface is at hand, as opposed to Spark Connect"""
    on_branch: bool = True
    """nobody else writes there; on main others may add rows at any moment"""

    @property
    def registers(self) -> bool:
        """Whether the files become the table's own as they are."""
        is_whole = not self._folds and self.shape.deleted is None
        return self._only_adds and is_whole and self.is_plain and self.is_classic

    @property
    def merges(self) -> bool:
        by_key = bool(self.shape.key) and self.rules.mode is not Mode.APPEND
        by_key = by_key and not self.rules.replaces_part
        return by_key and not self._only_adds

    def statement(
        self, into: str, rows: str, *, bounds: Sequence[object] = (), all_newer: bool = False
    ) -> str:
        """What puts the rows in, where their files are not registered."""
        if self._folds:
            rows = statements.newest_rows(rows, self.shape)
        if self.rules.replaces_part and not self._only_adds:
            return statements.replace_part(into, rows, self.shape, self.rules.within)
        if not self.merges:
            return statements.insert_rows(into, rows, self.shape, overwrite=not self._only_adds)
        return statements.merge_rows(
            into,
            rows,
            self.shape,
            newest_wins=self.rules.newest_wins
            and self.rules.mode is not Mode.DELETE_INSERT
            and not self.full,
            full=self.full,
            bounds=bounds,
            all_newer=all_newer,
        )

    @property
    def _folds(self) -> bool:
        newest = self.rules.duplicates is Duplicates.NEWEST and self.rules.mode is not Mode.APPEND
        return newest and self.shape.may_repeat_keys

    @property
    def _only_adds(self) -> bool:
        return self.rules.only_adds(full=self.full) or (self.on_branch and not self.has_rows)
