"""DataFrames on their way into a lake: what their columns become there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import DeclarationError
from tidegate.model.shape import Shape, StagedColumn
from tidegate.pipeline.declaration import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHORT = {"tinyint": "int", "smallint": "int"}
_FLAT = frozenset(
    {
        "boolean", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    }
)  # fmt: skip


def lake_frame_shape(
    frame: DataFrame, what: str, key: tuple[str, ...], cursor: str | None
) -> Shape:
    """The shape of a DataFrame's rows; refuses what Iceberg has no type for."""
    columns: list[StagedColumn] = []
    for field in frame.schema.fields:
        found = field.dataType.simpleString()
        kind = _SHORT.get(found, found)
        if kind not in _FLAT and not kind.startswith("decimal("):
            raise DeclarationError(
                f"{what}: column {field.name} is {found}, which cannot be put into a lake",
                "turn it into text with to_json(…), or into plain columns",
            )
        columns.append(StagedColumn(field.name, kind, kind))
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(f"{what} has column {twice} twice", "give them different names")
    for role, wanted in [*(("key column", name) for name in key)]:
        if wanted not in names:
            raise DeclarationError(f"{what} has no {role} {wanted}", nearest(wanted, names))
    return Shape(tuple(columns), key, cursor if cursor in names else None, key_is_unique=False)
