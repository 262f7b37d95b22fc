"""One raw event, read by a model: its values and its hash, or why it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, TypeAlias
from uuid import UUID

from tidegate.events.model import EventField, EventModel, FieldType, JsonPath
from tidegate.events.values import (
    EventText,
    Read,
    Unreadable,
    default_of,
    kind_of,
    reader_of,
)
from tidegate.events.values import (
    has_odd_text as holds_odd_text,
)

Written: TypeAlias = Sequence[tuple[int, Callable[[Any], str]]]
Leaf: TypeAlias = tuple[str | int, int, Read, Any, EventField]

_MOST_KEPT_IDS = 50_000


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as it was taken in."""

    id: UUID
    body: str
    received_at: datetime


@dataclass(frozen=True, slots=True)
class EventLimits:
    """What an event may be at most."""

    max_bytes: int
    max_age_seconds: float
    max_ahead_seconds: float
    keep_months: int = 0
    """how many months, the one of its arrival included, an event may belong to; 0: any"""


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """What a model finds in an event; with an `error` nothing else counts.

    `values` has one place for each of `model.fields`, `ids` one for each of `model.dimensions`:
    what stands in the facts for it, or None where the event belongs to no row of it.
    Values are str, bool, int, Decimal, float, UUID, date, datetime in UTC, or jsonb's text.
    `payload` is the event as jsonb takes it, or None where jsonb refuses it.
    """

    error: str | None
    payload: str | None = None
    event_hash: bytes | None = None
    values: tuple[Any, ...] = ()
    ids: tuple[Any, ...] = ()


class EventReader:
    """Reads events by one model; made once, for many of them."""

    def __init__(self, model: EventModel, limits: EventLimits) -> None:
        fields = model.fields
        place = {field.name: number for number, field in enumerate(fields)}
        self._text = EventText(limits.max_bytes)
        self._count = len(fields)
        self._groups = _grouped(model)
        self._moment_at = place[model.partition_column]
        self._moment_name = model.partition_column
        self._max_age = timedelta(seconds=limits.max_age_seconds)
        self._max_ahead = timedelta(seconds=limits.max_ahead_seconds)
        self._keep_months = limits.keep_months
        written = {field.name: (place[field.name], _WRITE[field.type]) for field in fields}
        self._hashed = [written[name] for name in model.hashed]
        self._keys = [tuple(written[field.name] for field in one.key) for one in model.dimensions]
        self._made_ids: dict[tuple[Any, ...], UUID] = {}

    def read(self, event: RawEvent) -> ReadEvent:
        """Read one event; whatever it holds, this returns."""
        try:
            values = self._values(self._text.read(event.body))
            self._check_moment(values[self._moment_at], event.received_at)
            return ReadEvent(
                None,
                event.body if self._text.fits_jsonb else None,
                sha256(canonical(self._hashed, values)).digest(),
                tuple(values),
                tuple([self._id(number, key, values) for number, key in enumerate(self._keys)]),
            )
        except Unreadable as error:
            return ReadEvent(str(error))
        except MemoryError:
            raise
        except Exception as error:
            # A fault of ours must not hold up every other event for ever.
            return ReadEvent(f"could not be read: {type(error).__name__}")

    def _values(self, event: Any) -> list[Any]:
        if type(event) is not dict:
            raise Unreadable(f"not an object but {kind_of(event)}")
        has_odd_text = self._text.has_odd_text
        values: list[Any] = [None] * self._count
        for parent, leaves in self._groups:
            holder: Any = parent.find(event) if parent.steps else event
            if type(holder) is not dict and type(holder) is not list:
                holder = {}
            # The innermost loop of the second phase: unpacked and without calls of its own.
            for step, place, read, default, field in leaves:
                try:
                    value = holder[step]
                except (KeyError, IndexError, TypeError):
                    value = None
                if value is not None:
                    try:
                        values[place] = read(value)
                    except Unreadable as error:
                        raise Unreadable(f"{field.name} is {error} ({field.path})") from None
                elif default is not None:
                    values[place] = default
                elif field.required:
                    raise Unreadable(f"{field.name} is missing ({field.path})")
                if has_odd_text and holds_odd_text(value):
                    raise Unreadable(f"{field.name} holds a NUL or half a character ({field.path})")
        return values

    def _check_moment(self, moment: datetime, received_at: datetime) -> None:
        # Differences, since a bound could lie outside of the years that exist.
        age = received_at - moment
        if age > self._max_age:
            raise Unreadable(f"{self._moment_name} is older than what is taken")
        if -age > self._max_ahead:
            raise Unreadable(f"{self._moment_name} is too far in the future")
        if self._keep_months:
            received = received_at.astimezone(UTC)
            months = (received.year - moment.year) * 12 + received.month - moment.month
            if months >= self._keep_months:
                raise Unreadable(f"{self._moment_name} is older than what is kept")

    def _id(self, number: int, key: Written, values: list[Any]) -> Any:
        if len(key) == 1:
            return values[key[0][0]]
        found = (number, *[values[place] for place, _ in key])
        made = self._made_ids.get(found)
        if made is None:
            if all(value is None for value in found[1:]):
                return None
            made = UUID(bytes=sha256(canonical(key, values)).digest()[:16])
            if len(self._made_ids) < _MOST_KEPT_IDS:
                self._made_ids[found] = made
        return made


def canonical(key: Written, values: Sequence[Any]) -> bytes:
    """One text for equal values: a JSON array, moments in UTC, numbers without needless digits."""
    parts = ["null" if (value := values[place]) is None else write(value) for place, write in key]
    return f"[{','.join(parts)}]".encode()


def _quoted(value: Any) -> str:
    return f'"{value}"'


# As json.dumps would write them, which makes an encoder anew for each call.
_WRITE: dict[FieldType, Callable[[Any], str]] = {
    FieldType.TEXT: encode_basestring,
    FieldType.JSONB: encode_basestring,
    FieldType.BOOLEAN: lambda value: "true" if value else "false",
    FieldType.BIGINT: str,
    FieldType.DOUBLE: repr,
    FieldType.NUMERIC: _quoted,
    FieldType.UUID: _quoted,
    FieldType.DATE: _quoted,
    FieldType.TIMESTAMPTZ: lambda value: f'"{value.isoformat(timespec="microseconds")}"',
}


def _grouped(model: EventModel) -> list[tuple[JsonPath, list[Leaf]]]:
    """Fields by the object that holds them, which is then looked for once."""
    keys = {one.key[0].name for one in model.dimensions if len(one.key) == 1}
    groups: dict[JsonPath, list[Leaf]] = {}
    for place, field in enumerate(model.fields):
        read = reader_of(field, is_key=field.name in keys, is_hashed=field.name in model.hashed)
        leaf = (field.path.steps[-1], place, read, default_of(field, read), field)
        groups.setdefault(JsonPath(field.path.steps[:-1]), []).append(leaf)
    return list(groups.items())
