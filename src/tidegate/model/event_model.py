"""What raw events become: the fields that are read from them, dimensions, facts and views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.model.json_path import JsonPath
from tidegate.model.relation import Relation


class FieldType(StrEnum):
    """What a value of an event is read as, and the type of its column."""

    TEXT = "text"
    BOOLEAN = "boolean"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    DOUBLE = "double precision"
    UUID = "uuid"
    DATE = "date"
    TIMESTAMPTZ = "timestamptz"
    JSONB = "jsonb"


@dataclass(frozen=True, slots=True)
class Field:
    """One column that is read from an event by its path."""

    name: str
    path: JsonPath
    type: FieldType
    required: bool = False
    default: str | None = None
    """what stands in when the event has no value, as text that the type reads"""
    precision: int | None = None
    """of a numeric, with `scale`; a value that needs more digits is refused, never rounded"""
    scale: int | None = None
    max_length: int | None = None
    """of a text, in characters; a longer one is refused"""
    examples: tuple[str, ...] = ()
    """what `tidegate event generate` chooses from"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A table with a row for each thing that events speak of.

    A key of one column is the primary key and stands in the facts. A key of several columns gets
    an `id_column` (uuid, made of the key's values) that is the primary key and stands in the
    facts. `attributes` are those of the newest event (by the partition column, then event_hash)
    that has a value for any of them; `first_seen_at` and `last_seen_at` span all of its events.
    An event in which every key column is missing belongs to no row of it.
    """

    name: str
    table: Relation
    key: tuple[Field, ...]
    attributes: tuple[Field, ...] = ()
    id_column: str | None = None

    @property
    def fact_column(self) -> str:
        """The column by which facts name a row of this dimension."""
        return self.id_column or self.key[0].name


@dataclass(frozen=True, slots=True)
class View:
    """A materialized view over the facts, with the unique columns that CONCURRENTLY needs."""

    name: Relation
    query: str
    unique: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventModel:
    """The star that a project's events are turned into.

    The facts have the columns event_hash (bytea), `columns`, one for each dimension, and loaded_in
    (xid8, for exact exports); their primary key is (event_hash, partition_column).
    """

    facts: Relation
    columns: tuple[Field, ...]
    partition_column: str
    """a required timestamptz of `columns`, and one of `hashed`"""
    hashed: tuple[str, ...]
    """what makes two events the same, by names of columns of the facts or keys of dimensions"""
    dimensions: tuple[Dimension, ...] = ()
    """in the order in which they are written, the same in every process"""
    views: tuple[View, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        """All that is read from an event, each column once: the facts' first."""
        found: dict[str, Field] = {}
        for field in self._all():
            found.setdefault(field.name, field)
        return tuple(found.values())

    @property
    def partition_field(self) -> Field:
        return next(one for one in self.columns if one.name == self.partition_column)

    def _all(self) -> Iterable[Field]:
        yield from self.columns
        for dimension in self.dimensions:
            yield from dimension.key
            yield from dimension.attributes
