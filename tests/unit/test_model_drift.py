"""What is remembered of a load's columns, and what is read from it at the next one."""

from __future__ import annotations

import json

from tidegate.core.shape import LoadedShape, Shape, StagedColumn, record_columns


def shape(*names: str, kind: str = "text") -> Shape:
    return Shape(tuple(StagedColumn(name, kind, kind) for name in names), (), None, False)


def recorded(before: Shape, *source_names: str) -> LoadedShape:
    stored = json.loads(json.dumps({"columns": record_columns(before)}))
    found = LoadedShape.recorded(stored, source_names)
    assert found is not None
    return found


def test_a_watermark_that_remembers_no_columns_tells_of_no_drift() -> None:
    assert LoadedShape.recorded(None) is None
    assert LoadedShape.recorded({"key": ["id"]}) is None


def test_what_the_source_still_has_is_left_out_and_not_gone() -> None:
    before = shape("a", "b", "c")
    assert [one.name for one in recorded(before).gone(shape("a"))] == ["b", "c"]
    assert [one.name for one in recorded(before, "a", "b").gone(shape("a"))] == ["c"]


def test_a_rename_keeps_place_and_type() -> None:
    before = shape("a", "b", "c")
    assert recorded(before).renamed(shape("a", "x", "c")) == {"b": "x"}
    assert recorded(before).renamed(shape("x", "b", "y")) == {"a": "x", "c": "y"}
    assert recorded(before).renamed(shape("a", "c", "x")) == {}
    assert recorded(before).renamed(shape("a", "x", "c", kind="integer")) == {}
    assert recorded(before, "b").renamed(shape("a", "x", "c")) == {}
    assert recorded(before).renamed(shape("c", "b", "a")) == {}
