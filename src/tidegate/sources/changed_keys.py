"""The keys of rows that a stream of changes touches, without the rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tidegate.model.relation import Relation
from tidegate.sources import pgoutput
from tidegate.sources.pgoutput import NULL, Damaged, Field, StreamRelation, damaged, read_row

Key = tuple[str | None, ...]


class Emptied(Exception):
    """The whole table was truncated, so that every key is touched."""


def changed_keys(
    messages: Iterator[tuple[str, bytes]], slot: str, relation: Relation, key: tuple[str, ...]
) -> Iterator[Key]:
    """Each key before and after its change, as often as it changes."""
    known: dict[bytes, StreamRelation] = {}
    lsn = "its beginning"
    try:
        for lsn, data in messages:  # noqa: B007
            kind = data[0]
            if kind == pgoutput.RELATION:
                described = pgoutput.read_relation(data)
                if described.relation == relation:
                    known[data[1:5]] = described
                else:
                    known.pop(data[1:5], None)
            elif kind == pgoutput.TRUNCATE:
                if any(struct.pack(">I", oid) in known for oid in pgoutput.read_truncate(data)):
                    raise Emptied
            elif kind in (pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE):
                table = known.get(data[1:5])
                if table is not None:
                    yield from _keys(data, table, key)
    except Damaged as error:
        raise damaged(slot, lsn, str(error)) from None
    except (IndexError, struct.error) as error:
        raise damaged(slot, lsn, "it is cut off") from error


def _keys(data: bytes, table: StreamRelation, key: tuple[str, ...]) -> Iterator[Key]:
    """Of a message with one row, or with what it was and what it became."""
    places = [table.names.index(name) for name in key]
    at = 5
    while at < len(data):
        fields, at = read_row(data, at + 1, range(len(table.columns)))
        yield tuple(_text(fields[place]) for place in places)


def _text(field: Field) -> str | None:
    return None if field is None or field == NULL else field[4:].decode()
