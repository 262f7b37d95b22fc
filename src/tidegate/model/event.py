"""One raw event, read by a model: its values and its hash, or why it fails."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.model.event_model import EventModel


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


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """What a model finds in an event; with an `error` nothing else counts.

    `values` has one place for each of `model.fields`, `ids` one for each of `model.dimensions`:
    what stands in the facts for it, or None where the event belongs to no row of it.
    `payload` is the event as jsonb takes it, or None where jsonb refuses it.
    """

    error: str | None
    payload: str | None = None
    event_hash: bytes | None = None
    values: tuple[Any, ...] = ()
    ids: tuple[Any, ...] = ()


def read_event(model: EventModel, limits: EventLimits, event: RawEvent) -> ReadEvent:
    """Read one event; whatever it holds, this returns."""
    raise NotImplementedError
