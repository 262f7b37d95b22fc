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
    operators: str | None = None
    """the schema of the target's operators for it, where they are not built in"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a load, its key, and the cursor if the rows still carry it."""

    columns: tuple[StagedColumn, ...]
    key: tuple[str, ...]
    cursor: str | None
    key_is_unique: bool
    """an index of the source proves it, so no duplicate can be in a batch"""
    deleted: str | None = None
    """a staged boolean beside the columns: the row with this key is gone; what else such a row
    holds means nothing, and its cursor may be NULL"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def staged(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of what is staged: the columns, and last the flag of deleted rows."""
        columns = tuple((column.name, column.staged_type) for column in self.columns)
        return columns if self.deleted is None else (*columns, (self.deleted, "boolean"))

    @property
    def may_repeat_keys(self) -> bool:
        """Whether a batch can hold a key twice; an index does not tell of rows that are gone."""
        return bool(self.key) and (self.deleted is not None or not self.key_is_unique)

    def column(self, name: str) -> StagedColumn | None:
        return next((column for column in self.columns if column.name == name), None)
