"""Decode pgoutput messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.core.errors import SourceError
from tidegate.core.relation import Relation

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
# Types, origins and messages of the user's own: nothing of a row.
PASSED_OVER = b"YOM"
OLD_KEY, OLD_ROW, NEW_ROW = b"KON"

NULL = b"\xff\xff\xff\xff"
Field = bytes | None
"""a value with its length in front, NULL, or None: unchanged, and not sent"""

_TEXT, _NULL, _UNCHANGED = b"tnu"
_IS_KEY = 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_length = struct.Struct(">I").unpack_from
_short = struct.Struct(">H").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">BQQq").unpack_from
_column = struct.Struct(">Ii").unpack_from


class Damaged(ValueError):
    """A message is not what it should be."""


@dataclass(frozen=True, slots=True)
class StreamColumn:
    """A column as the source described it when the changes were made."""

    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class StreamRelation:
    """A table as the messages after this one describe it."""

    oid: int
    relation: Relation
    columns: tuple[StreamColumn, ...]
    identity: frozenset[str]
    """the columns that are told of a row before it was changed"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def damaged(slot: str, lsn: str, reason: str) -> SourceError:
    """What a user is told of a message that cannot be understood."""
    return SourceError(
        f"slot {slot}: the message at {lsn} cannot be understood: {reason}",
        "nothing was published; run again, and if it stays so load everything again: "
        "tidegate run NAME --full-refresh",
    )


def moment(microseconds: int) -> datetime:
    """A time of the stream, which counts from the year 2000."""
    return _EPOCH + timedelta(microseconds=microseconds)


def read_begin(data: bytes) -> tuple[int, int]:
    """(LSN of the commit, its time) of a transaction that begins."""
    final, committed, _ = _begin(data, 1)
    return final, committed


def read_xid(data: bytes) -> int:
    """The number of a transaction that begins."""
    xid: int = _begin(data, 1)[2]
    return xid


def read_commit(data: bytes) -> tuple[int, int]:
    """(LSN right behind the commit, its time)."""
    _, _, end, committed = _commit(data, 1)
    return end, committed


def read_relation(data: bytes) -> StreamRelation:
    (oid,) = _length(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    (count,) = _short(data, at + 1)
    at += 3
    columns: list[StreamColumn] = []
    identity: set[str] = set()
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        kind, modifier = _column(data, at)
        at += 8
        columns.append(StreamColumn(column, kind, modifier))
        if flags & _IS_KEY:
            identity.add(column)
    check_end(data, at)
    # The schema of what is built in is not spelled out.
    relation = Relation(schema or "pg_catalog", name)
    return StreamRelation(oid, relation, tuple(columns), frozenset(identity))


def read_truncate(data: bytes) -> tuple[int, ...]:
    """The tables that were emptied."""
    (count,) = _length(data, 1)
    check_end(data, 6 + 4 * count)
    return struct.unpack_from(f">{count}I", data, 6)


def read_row(data: bytes, at: int, places: range) -> tuple[list[Field], int]:
    """The fields of a row whose count stands at `at`, and where it ends.

    All that is read goes through here, so that it does without another call.
    """
    if data[at] << 8 | data[at + 1] != len(places):
        raise Damaged(
            f"a row of {data[at] << 8 | data[at + 1]} columns, of a table with {len(places)}"
        )
    at += 2
    fields: list[Field] = []
    add = fields.append
    for _ in places:
        if data[at] == _TEXT:
            at += 1
            end = at + 4 + _length(data, at)[0]
            add(data[at:end])
            at = end
        elif data[at] == _NULL:
            add(NULL)
            at += 1
        elif data[at] == _UNCHANGED:
            add(None)
            at += 1
        else:
            raise Damaged(f"a value of the unknown kind {chr(data[at])!r}")
    return fields, at


def split_row(body: bytes, count: int) -> list[Field]:
    """The fields of a row that were joined."""
    fields: list[Field] = []
    at = 0
    for _ in range(count):
        if body.startswith(NULL, at):
            fields.append(NULL)
            at += 4
        else:
            end = at + 4 + _length(body, at)[0]
            fields.append(body[at:end])
            at = end
    return fields


def join_key(fields: Sequence[Field], places: Sequence[int]) -> bytes:
    """What tells a row apart: its key's fields, each with its length."""
    found = [fields[place] for place in places]
    try:
        return b"".join(found)  # type: ignore[arg-type]
    except TypeError:
        raise Damaged("a part of the key was not sent") from None


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def check_end(data: bytes, end: int) -> None:
    """Refuse a message that is shorter or longer than what it tells."""
    if end != len(data):
        raise Damaged(f"it has {len(data)} bytes, and should have {end}")


Key = tuple[str | None, ...]


class TableTruncated(Exception):
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
            if kind == RELATION:
                described = read_relation(data)
                if described.relation == relation:
                    known[data[1:5]] = described
                else:
                    known.pop(data[1:5], None)
            elif kind == TRUNCATE:
                if any(struct.pack(">I", oid) in known for oid in read_truncate(data)):
                    raise TableTruncated
            elif kind in (INSERT, UPDATE, DELETE):
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
