"""What must hold of a model of events before anything is made by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidegate.model.event_model import Dimension, EventModel, Field, FieldType
from tidegate.model.event_text import Unreadable
from tidegate.model.event_value import default_of, reader_of
from tidegate.model.relation import MAX_NAME_BYTES
from tidegate.model.view_query import query_problem

FACT_COLUMNS = frozenset(["event_hash", "loaded_in"])
DIMENSION_COLUMNS = frozenset(["first_seen_at", "last_seen_at", "attributes_at", "attributes_hash"])
# fact_events_2026_11
_MONTH_BYTES = 8


def model_problems(model: EventModel) -> Iterator[str]:
    """Everything that is wrong with a model, each beginning with the key it is written at."""
    yield from _facts(model)
    for dimension in model.dimensions:
        yield from _dimension(dimension)
    yield from _agreement(model)
    yield from _relations(model)
    for view in model.views:
        problem = query_problem(view.query)
        if problem is not None:
            yield f"view {view.name} {problem}"


def _facts(model: EventModel) -> Iterator[str]:
    columns = {field.name: field for field in model.columns}
    partition = columns.get(model.partition_column)
    at = f'facts.partition is "{model.partition_column}"'
    if partition is None:
        yield f"{at}, which is no column of the facts"
    else:
        if partition.type is not FieldType.TIMESTAMPTZ:
            yield f"{at}, which is a {partition.type}; it must be a timestamptz"
        if not partition.required:
            yield f"{at}, which is not required; an event without it belongs to no month"
        if partition.name not in model.hashed:
            yield f"{at}, which is not in facts.hashed; a unique index over months must hold it"
    keys = [field.name for one in model.dimensions for field in one.key]
    if not model.hashed:
        yield "facts.hashed is empty; name what makes two events the same"
    for name in model.hashed:
        if name not in columns and name not in keys:
            yield f'facts.hashed has "{name}", which is no column of the facts and no key'
    for name in _repeated(model.hashed):
        yield f'facts.hashed has "{name}" twice'
    in_facts = [*columns, *(one.fact_column for one in model.dimensions)]
    for name in _repeated(in_facts):
        yield f'the facts would have "{name}" twice; a dimension brings its own column along'
    for name in FACT_COLUMNS.intersection(in_facts):
        yield f'facts.columns has "{name}", a name that Tidegate keeps for itself'
    for field in model.columns:
        yield from _field(f"facts.columns.{field.name}", field)


def _dimension(dimension: Dimension) -> Iterator[str]:
    at = f"dimensions.{dimension.name}"
    fields = [*dimension.key, *dimension.attributes]
    names = [field.name for field in fields]
    if not dimension.key:
        yield f"{at}.key is empty; name what tells its rows apart"
    if len(dimension.key) > 1 and dimension.id_column is None:
        yield f"{at}.id is missing; a key of several columns needs a name for what stands for it"
    if len(dimension.key) == 1 and dimension.id_column is not None:
        yield f"{at}.id is not needed; a key of one column stands in the facts itself"
    for field in dimension.key:
        if field.type is FieldType.JSONB:
            yield f"{at}.key.{field.name} is jsonb, which tells no rows apart"
    if dimension.id_column is not None:
        names.append(dimension.id_column)
    for name in _repeated(names):
        yield f'{at} has "{name}" twice'
    for name in DIMENSION_COLUMNS.intersection(names):
        yield f'{at} has "{name}", a name that Tidegate keeps for itself'
    for field in fields:
        yield from _field(f"{at}.{field.name}", field)


def _field(at: str, field: Field) -> Iterator[str]:
    if not 1 <= len(field.name.encode()) <= MAX_NAME_BYTES or "\0" in field.name:
        yield f"{at} is not a name of 1 to {MAX_NAME_BYTES} bytes"
    if field.required and field.default is not None:
        yield f"{at} is required and has a default; give one of them"
    if field.max_length is not None and field.type is not FieldType.TEXT:
        yield f"{at} has a max_length, which only a text has"
    try:
        default_of(field, reader_of(field))
    except Unreadable as error:
        yield f"{at}.default is {error}"


def _agreement(model: EventModel) -> Iterator[str]:
    """A name used twice must mean the same, since it is read once."""
    known = {field.name: field for field in model.fields}
    for dimension in model.dimensions:
        for field in (*dimension.key, *dimension.attributes):
            if known[field.name] != field:
                yield (
                    f'dimensions.{dimension.name} has "{field.name}" with another path or type '
                    "than elsewhere; use another name"
                )
    ids = Counter(one.id_column for one in model.dimensions if one.id_column in known)
    for name in ids:
        yield f'"{name}" is the id of a dimension and a field; use another name'


def _relations(model: EventModel) -> Iterator[str]:
    tables = [model.facts, *(one.table for one in model.dimensions)]
    for relation in _repeated(str(one) for one in (*tables, *(v.name for v in model.views))):
        yield f"{relation} is named twice; each table and view needs a name of its own"
    if len(model.facts.name.encode()) > MAX_NAME_BYTES - _MONTH_BYTES:
        yield (
            f"facts.table is {model.facts}; its partitions need {_MONTH_BYTES} bytes more than "
            "its name, and Postgres takes 63"
        )
    for view in model.views:
        if not view.unique:
            yield f"view {view.name} has no unique columns, which a refresh beside readers needs"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
