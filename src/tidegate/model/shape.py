"""The shape of staged rows: which columns travel, in which type, and what they become."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """One column on its way: `staged_type` in staging, `target_type` in the target."""

    name: str
    staged_type: str
    target_type: str
    not_null: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a load, its key, and the cursor if the rows still carry it."""

    columns: tuple[StagedColumn, ...]
    key: tuple[str, ...]
    cursor: str | None
    key_is_unique: bool
    """an index of the source proves it, so no duplicate can be in a batch"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> StagedColumn | None:
        return next((column for column in self.columns if column.name == name), None)
