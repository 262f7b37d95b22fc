"""Columns of staged rows, and of rows as last loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True, slots=True)
class LoadedColumn:
    """A column as it was when it was last loaded."""

    name: str
    type: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class LoadedShape:
    """The columns of the last load; `source_names` are those that the source has now."""

    columns: tuple[LoadedColumn, ...]
    source_names: frozenset[str] = frozenset()

    @classmethod
    def recorded(
        cls, declaration: Mapping[str, Any] | None, source_names: Collection[str] = ()
    ) -> LoadedShape | None:
        """What stands with the watermark; None where nothing was loaded yet."""
        found = (declaration or {}).get("columns")
        if found is None:
            return None
        columns = tuple(LoadedColumn(name, kind, not_null) for name, kind, not_null in found)
        return cls(columns, frozenset(source_names))

    def column(self, name: str) -> LoadedColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def gone(self, shape: Shape) -> tuple[LoadedColumn, ...]:
        """What the source lost; a column that the declaration leaves out is still there."""
        here = {*shape.names, *self.source_names}
        return tuple(column for column in self.columns if column.name not in here)

    def renamed(self, shape: Shape) -> dict[str, str]:
        """New names by old ones, where place and type stayed."""
        return {
            before.name: after.name
            for before, after in zip(self.columns, shape.columns, strict=False)
            if before in self.gone(shape)
            and self.column(after.name) is None
            and before.type == after.target_type
        }


def record_columns(shape: Shape) -> list[list[Any]]:
    """The columns of a load as they are remembered with its watermark."""
    return [[column.name, column.target_type, column.not_null] for column in shape.columns]
