"""Events made up for any model: values by the types of its fields."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from tidegate.model.event_model import EventModel, Field, FieldType
from tidegate.model.event_value import reader_of
from tidegate.model.json_path import JsonPath

Tree = dict[str, Any]

_MISSING_SHARE = 0.1
_DIFFERENT = 20
_TICK = timedelta(microseconds=1)


class Samples:
    """Makes events as trees of typed values, no two with the same moment."""

    def __init__(self, model: EventModel, rng: Random, since: datetime, until: datetime) -> None:
        self._rng = rng
        self._since = since
        self._span = until - since
        self._fields = model.fields
        self._moment = model.partition_field
        # Each value of a key takes its attributes along, as a real thing would.
        self._with_key = {
            field.name: dimension.key[0]
            for dimension in model.dimensions
            for field in dimension.attributes
            if field.name not in {one.name for one in model.columns}
        }
        self._kept: dict[tuple[str, str], Any] = {}

    def make(self, number: int, count: int) -> Tree:
        """The event with this number of so many."""
        tree: Tree = {}
        # A slot of its own for each, so that no two events are the same by chance.
        slot = self._span / count
        jitter = timedelta(microseconds=self._rng.randrange(slot // _TICK or 1))
        put(tree, self._moment.path, self._since + slot * number + jitter)
        self.add(tree, self._fields)
        return tree

    def add(self, tree: Tree, fields: Iterable[Field]) -> None:
        """Add values of fields to an event; some of those that may be missing are."""
        for field in fields:
            if field == self._moment:
                continue
            if not field.required and self._rng.random() < _MISSING_SHARE:
                continue
            key = self._with_key.get(field.name)
            if key is None:
                put(tree, field.path, self._value(field))
                continue
            kept = (field.name, str(key.path.find(tree)))
            if kept not in self._kept:
                self._kept[kept] = self._value(field)
            put(tree, field.path, self._kept[kept])

    def _value(self, field: Field) -> Any:
        if field.examples:
            return _example(field, self._rng.choice(field.examples))
        rng = self._rng
        match field.type:
            case FieldType.BOOLEAN:
                return rng.random() < 0.5
            case FieldType.BIGINT:
                return rng.randrange(1_000)
            case FieldType.NUMERIC:
                scale = 2 if field.scale is None else field.scale
                digits = min(4, field.precision - scale) if field.precision else 4
                return Decimal(rng.randrange(10 ** (digits + scale))).scaleb(-scale)
            case FieldType.DOUBLE:
                return round(rng.gauss(100, 15), 3)
            case FieldType.UUID:
                return UUID(int=rng.randrange(_DIFFERENT), version=4)
            case FieldType.DATE:
                return (self._since + self._span * rng.random()).date()
            case FieldType.TIMESTAMPTZ:
                return self._since + self._span * rng.random()
            case FieldType.JSONB:
                return {"count": rng.randrange(100), "tag": f"tag-{rng.randrange(9)}"}
            case _:
                text = f"{field.name}-{rng.randrange(_DIFFERENT)}"
                return text[-field.max_length :] if field.max_length else text


def put(tree: Tree, path: JsonPath, value: Any) -> None:
    """Put a value where a path leads, making what lies on the way."""
    holder: Any = tree
    for step, following in zip(path.steps, path.steps[1:], strict=False):
        empty: Any = {} if isinstance(following, str) else []
        if isinstance(step, str):
            holder = holder.setdefault(step, empty)
        else:
            holder.extend([None] * (step + 1 - len(holder)))
            holder[step] = empty if holder[step] is None else holder[step]
            holder = holder[step]
    last = path.steps[-1]
    if isinstance(last, int):
        holder.extend([None] * (last + 1 - len(holder)))
    holder[last] = value


def _example(field: Field, text: str) -> Any:
    """An example as the value that it stands for."""
    if field.type is FieldType.BOOLEAN:
        return text == "true"
    return reader_of(field)(text)
