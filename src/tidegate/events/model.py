"""Fields, dimensions, facts, views, JSON paths, phases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Relation

_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z_$][A-Za-z0-9_$-]*)|\[(?P<index>\d{1,6})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)


class _Missing:
    """What a path finds where nothing is; a null in the event is None."""


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class JsonPath:
    """Steps from the top of an event down to one value: names of members and places in arrays."""

    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Read a path; only members and places can be named, so that it means one value."""
        steps: list[str | int] = []
        position = 1
        while text.startswith("$") and position < len(text):
            match = _STEP.match(text, position)
            if match is None:
                break
            name, index, quoted = match.group("name", "index", "quoted")
            steps.append(name if name else int(index) if index else json.loads(quoted))
            position = match.end()
        if not steps or position != len(text):
            raise DeclarationError(
                f"{text!r} is not a path into an event",
                'write $.member, $.member.inner, $.list[0] or $["odd name"]',
            )
        return cls(tuple(steps))

    def find(self, value: Any) -> Any:
        """The value there, or MISSING."""
        for step in self.steps:
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return MISSING
            elif not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        return value

    def __str__(self) -> str:
        return "$" + "".join(
            f"[{step}]"
            if isinstance(step, int)
            else f".{step}"
            if _STEP.fullmatch(f".{step}")
            else f"[{json.dumps(step, ensure_ascii=False)}]"
            for step in self.steps
        )


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
class EventField:
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
    key: tuple[EventField, ...]
    attributes: tuple[EventField, ...] = ()
    id_column: str | None = None

    @property
    def fact_column(self) -> str:
        """The column by which facts name a row of this dimension."""
        return self.id_column or self.key[0].name


@dataclass(frozen=True, slots=True)
class EventView:
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
    columns: tuple[EventField, ...]
    partition_column: str
    """a required timestamptz of `columns`, and one of `hashed`"""
    hashed: tuple[str, ...]
    """what makes two events the same, by names of columns of the facts or keys of dimensions"""
    dimensions: tuple[Dimension, ...] = ()
    """in the order in which they are written, the same in every process"""
    views: tuple[EventView, ...] = ()

    @property
    def fields(self) -> tuple[EventField, ...]:
        """All that is read from an event, each column once: the facts' first."""
        found: dict[str, EventField] = {}
        for field in self._all():
            found.setdefault(field.name, field)
        return tuple(found.values())

    @property
    def partition_field(self) -> EventField:
        return next(one for one in self.columns if one.name == self.partition_column)

    def _all(self) -> Iterable[EventField]:
        yield from self.columns
        for dimension in self.dimensions:
            yield from dimension.key
            yield from dimension.attributes


class Phase(StrEnum):
    """What a job of events does."""

    PROVISION = "provision"
    PROCESS = "process"
    REFRESH = "refresh"

    @property
    def job_name(self) -> str:
        return f"events.{self}"


PHASES = tuple(Phase)
SCHEDULED_NAME = "events.run"
"""what the schedule of events is called; no sync can have this name"""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """One committed batch."""

    claimed: int
    done: int
    failed: int
    facts: int
    """rows that came to the facts; the other done events were there already"""
    missing_months: tuple[date, ...] = ()
    """months without a partition, whose events stay pending"""

    @property
    def left_pending(self) -> int:
        return self.claimed - self.done - self.failed


@dataclass(frozen=True, slots=True)
class Processed:
    """What a run of the second phase did."""

    claimed: int
    done: int
    failed: int
    facts: int
    batches: int
    left_pending: int
    """events that wait at the end, whoever may hold them"""
    seconds: float

    @property
    def duplicates(self) -> int:
        """Events that are done, and whose fact was there already."""
        return self.done - self.facts

    @classmethod
    def of(cls, ends: Sequence[BatchEnd], *, left_pending: int, seconds: float) -> Processed:
        return cls(
            claimed=sum(one.claimed for one in ends),
            done=sum(one.done for one in ends),
            failed=sum(one.failed for one in ends),
            facts=sum(one.facts for one in ends),
            batches=len(ends),
            left_pending=left_pending,
            seconds=seconds,
        )
