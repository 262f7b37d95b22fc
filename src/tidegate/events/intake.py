"""Events come in, each once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

from psycopg import sql

from tidegate.core.relation import Relation
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import qualified, statement

_SPACE = b" \t\r\n"
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""a whole string, or one sign; a quote alone begins a string that does not end"""
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
_ID_VALUE = re.compile(
    rb'[ \t\r\n]*:[ \t\r\n]*"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"', re.I
)
_ID_NAMES = (b'"event_id"', b'"id"')
"""the first that is found counts"""
_NOT_TEXT = re.compile("(\\\\*)([\0\udc80-\udcff])")
_NIL = UUID(int=0)


def body_text(body: bytes) -> str:
    r"""A body as a column of text takes it: a byte that is not UTF-8, and NUL, become `\xNN`.

    No JSON holds a backslash before an x, so what was changed here never passes for an event.

    >>> print(body_text(b'{"a": "\xff"}'))
    {"a": "\xff"}
    """
    text = body.decode("utf-8", "surrogateescape")
    if body.isascii() and b"\0" not in body:
        return text
    return _NOT_TEXT.sub(_escaped, text)


def storable(text: str) -> str:
    """The same for what is text already, with what UTF-8 cannot hold."""
    return body_text(text.encode("utf-8", "surrogatepass"))


def cut_lines(body: bytes) -> list[bytes]:
    """The events of lines of JSON; blank lines are none."""
    return [line for one in body.split(b"\n") if (line := one.strip(_SPACE))]


def cut_array(body: bytes) -> list[bytes] | None:
    """The elements of a JSON array, each as it was written; None for what is no whole array.

    An element may be anything: only its end is looked for.

    >>> cut_array(b'[{"a": 1.00}, nonsense, []]')
    [b'{"a": 1.00}', b'nonsense', b'[]']
    """
    if not body.lstrip(_SPACE).startswith(b"["):
        return None
    pieces: list[bytes] = []
    awaited = bytearray()
    begun = 0
    for token in _TOKEN.finditer(body):
        start, end = token.span()
        sign = body[start]
        if sign == ord('"'):
            if end - start == 1:
                return None
        elif sign in _CLOSING:
            awaited.append(_CLOSING[sign])
            if len(awaited) == 1:
                begun = end
        elif sign == ord(","):
            if len(awaited) == 1:
                pieces.append(body[begun:start].strip(_SPACE))
                begun = end
        elif awaited.pop() != sign:
            return None
        elif not awaited:
            pieces.append(body[begun:start].strip(_SPACE))
            if body[end:].strip(_SPACE):
                return None
            return _without_gaps(pieces)
    return None


def find_id(body: bytes) -> UUID | None:
    """The uuid that an event calls itself: its own member `event_id`, else `id`.

    Those of objects inside it are somebody else's, and the nil uuid is nobody's.

    >>> find_id(b'{"user": {"id": "5b1f7c3e-0000-4000-8000-000000000001"}}') is None
    True
    """
    if not any(name in body for name in _ID_NAMES) or not body.lstrip(_SPACE).startswith(b"{"):
        return None
    found: dict[bytes, UUID] = {}
    depth = 0
    for token in _TOKEN.finditer(body):
        name = token.group()
        if name in (b"[", b"{"):
            depth += 1
        elif name in (b"]", b"}"):
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and name in _ID_NAMES:
            value = _ID_VALUE.match(body, token.end())
            if value is not None:
                # As JSON is read: the last of several members with one name counts.
                found[name] = UUID(value.group(1).decode())
    return next(
        (found[name] for name in _ID_NAMES if found.get(name, _NIL) != _NIL),
        None,
    )


def _without_gaps(pieces: list[bytes]) -> list[bytes] | None:
    if pieces == [b""]:
        return []
    return pieces if all(pieces) else None


def _escaped(found: re.Match[str]) -> str:
    before, sign = found.groups()
    if len(before) % 2:
        # It would make a JSON escape of ours: two backslashes.
        before = before[:-1] + "\\x5c"
    return f"{before}\\x{ord(sign) & 0xFF:02x}"


COPIED_TOGETHER = 20_000
_COPIED = sql.Identifier("tidegate_copied_events")


@dataclass(frozen=True, slots=True)
class AcceptedEvents:
    """How many events were new, and how many were held already."""

    accepted: int
    known: int
    differing: frozenset[UUID] = frozenset()
    """known ones whose body is another than the one that is held, which stays"""


def accept_events(
    connection: Connection,
    raw: Relation,
    events: Iterable[tuple[UUID, str]],
    sender: str | None = None,
) -> AcceptedEvents:
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
        return AcceptedEvents(0, 0)
    parameters = {"ids": list(given), "bodies": list(given.values()), "sender": sender}
    accepted = connection.execute(_statement("take_in", raw), parameters).rowcount
    if accepted < len(given):
        rows = connection.execute(_statement("list_differing", raw), parameters)
        differing.update(row[0] for row in rows)
    return AcceptedEvents(accepted, count - accepted, frozenset(differing))


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
