"""Events come in: each once by its id, and nothing in them is looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

from psycopg import sql

from tidegate.model.event_body import storable
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import qualified, statement

COPIED_TOGETHER = 20_000
_COPIED = sql.Identifier("tidegate_copied_events")


@dataclass(frozen=True, slots=True)
class Taken:
    """How many events were new, and how many were held already."""

    accepted: int
    known: int
    differing: frozenset[UUID] = frozenset()
    """known ones whose body is another than the one that is held, which stays"""


def take_in(
    connection: Connection,
    raw: Relation,
    events: Iterable[tuple[UUID, str]],
    sender: str | None = None,
) -> Taken:
    """Add events by their ids in one statement; what is held already is left as it is."""
    given: dict[UUID, str] = {}
    differing: set[UUID] = set()
    count = 0
    for event_id, text in events:
        count += 1
        body = storable(text)
        if given.setdefault(event_id, body) != body:
            differing.add(event_id)
    if not given:
        return Taken(0, 0)
    parameters = {"ids": list(given), "bodies": list(given.values()), "sender": sender}
    accepted = connection.execute(_statement("take_in", raw), parameters).rowcount
    if accepted < len(given):
        rows = connection.execute(_statement("list_differing", raw), parameters)
        differing.update(row[0] for row in rows)
    return Taken(accepted, count - accepted, frozenset(differing))


def copy_in(
    connection: Connection,
    raw: Relation,
    events: Iterable[tuple[UUID, str, datetime | None]],
) -> int:
    """Add many events by COPY, each part in its own transaction; returns how many were new.

    After a crash the same events can be given again.
    """
    left = iter(events)
    added = 0
    while part := list(islice(left, COPIED_TOGETHER)):
        added += _copy_part(connection, raw, part)
    return added


def _copy_part(
    connection: Connection, raw: Relation, events: Iterable[tuple[UUID, str, datetime | None]]
) -> int:
    with connection.transaction():
        connection.execute(_statement("make_copied", raw), {})
        with connection.cursor() as cursor:
            with cursor.copy(_statement("copy", raw)) as copy:
                copy.set_types(["uuid", "text", "timestamptz"])
                for event_id, text, received_at in events:
                    copy.write_row((event_id, storable(text), received_at))
            added = cursor.execute(_statement("take_in_copied", raw), {}).rowcount
        connection.execute(_statement("drop_copied", raw), {})
    return added


def _statement(name: str, raw: Relation) -> sql.Composed:
    return statement("events/intake", name, raw=qualified(raw), copied=_COPIED)
