"""Drift: how the columns of a source differ from those that were loaded last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.model.shape import Shape


@dataclass(frozen=True, slots=True)
class LoadedColumn:
    """A column as it was when it was last loaded."""

    name: str
    type: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """The columns of the last load; `source_names` are those that the source has now."""

    columns: tuple[LoadedColumn, ...]
    source_names: frozenset[str] = frozenset()

    @classmethod
    def recorded(
        cls, declaration: Mapping[str, Any] | None, source_names: Collection[str] = ()
    ) -> Loaded | None:
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
