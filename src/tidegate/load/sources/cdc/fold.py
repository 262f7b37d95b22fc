"""Fold changes to one row a key."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import sql

from tidegate.core.errors import DeclarationError
from tidegate.load.sources.cdc.pgoutput import NULL, Damaged, Field, join_key, split_row
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import column_list

_EIGHT = b"\0\0\0\x08"
_FALSE, _TRUE = b"\0\0\0\1\0", b"\0\0\0\1\1"
_head = struct.Struct(">H4sq").pack
_ENTRY_BYTES = 120
"""about what an entry costs beside its values"""


class Twice(Exception):
    """Two rows had one key at the same moment, and which of them a change was of is not known."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that is gone, or of which not all is known."""

    fields: list[Field]
    """None where the value is that of the row `base`, as it was before this chunk"""
    base: bytes | None = None
    gone: bool = False
    deleted_at: int | None = None
    """soft deletes: when it was deleted; the row stays"""

    @property
    def is_there(self) -> bool:
        return not self.gone and self.deleted_at is None


@dataclass(slots=True)
class Fold:
    """The changes of one chunk, a row for each key, in the order of their last changes.

    A key is that of one row at every moment; where the changes show that it was not, Twice says so.
    A row of which everything is known is kept as the bytes that are written in the end.
    """

    key: Sequence[int]
    """the places of the key's columns"""
    count: int
    """of columns"""
    soft: bool = False
    size: int = 0
    """about how many bytes it holds"""
    entries: dict[bytes, bytes | RowChange] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    def clear(self) -> None:
        self.entries.clear()
        self.size = 0

    def insert(self, fields: list[Field]) -> None:
        """A row that came."""
        before = self.put(fields)
        if before is not None:
            self._refuse_second(before)

    def put(self, fields: list[Field]) -> bytes | RowChange | None:
        """A row that is told as a whole; what it was before, as far as that is known here."""
        try:
            body = b"".join(fields)  # type: ignore[arg-type]
        except TypeError:
            raise Damaged("a new row with a value that was not sent") from None
        key = fields[self.key[0]] if len(self.key) == 1 else join_key(fields, self.key)
        assert key is not None
        entries = self.entries
        # What is put back goes to the end: keys may be equal though their texts are not.
        before = entries.pop(key, None)
        entries[key] = body
        self.size += len(body) + _ENTRY_BYTES
        return before

    def update(self, fields: list[Field], old: list[Field] | None, *, whole: bool, at: int) -> None:
        """A row that was changed, `old` being its key before, or all of it if `whole`."""
        if old is not None:
            for place in range(self.count) if whole else self.key:
                if fields[place] is None:
                    fields[place] = old[place]
        before = join_key(fields if old is None else old, self.key)
        if whole:
            self._refuse_other(before, old)
        base: bytes | None = None
        if None in fields:
            fields, base = self._fill(fields, before)
        key = join_key(fields, self.key)
        if key != before:
            self._remove(before, old if whole else None, at)
            self._refuse_second(self.entries.get(key))
        if None in fields:
            self._keep(key, RowChange(fields, base))
        else:
            self.put(fields)

    def delete(self, old: list[Field], *, whole: bool, at: int) -> None:
        """A row that went, `old` being its key, or all of it if `whole`."""
        key = join_key(old, self.key)
        if whole:
            self._refuse_other(key, old)
        self._remove(key, old if whole else None, at)

    def _refuse_second(self, known: bytes | RowChange | None) -> None:
        """A row that comes must not find another with its key."""
        if isinstance(known, bytes) or (known is not None and known.is_there):
            raise Twice

    def _refuse_other(self, key: bytes, old: list[Field] | None) -> None:
        """A row that was changed must be the one that is known under its key."""
        known = self.entries.get(key)
        if known is None or old is None or None in old:
            return
        row = b"".join(old)  # type: ignore[arg-type]
        if not (known.is_there if isinstance(known, RowChange) else known == row):
            raise Twice

    def _keep(self, key: bytes, change: RowChange) -> None:
        self.entries.pop(key, None)
        self.entries[key] = change
        self.size += sum(len(one) for one in change.fields if one) + 2 * _ENTRY_BYTES

    def _fill(self, fields: list[Field], before: bytes) -> tuple[list[Field], bytes | None]:
        """What was not sent, from what the row was, as far as that is known here; and the row
        that the rest is to be taken from."""
        known = self.entries.get(before)
        if known is None or (isinstance(known, RowChange) and known.gone):
            return fields, before
        was = split_row(known, self.count) if isinstance(known, bytes) else known.fields
        filled = [old if new is None else new for new, old in zip(fields, was, strict=True)]
        return filled, None if isinstance(known, bytes) else known.base

    def _remove(self, key: bytes, old: list[Field] | None, at: int) -> None:
        known = self.entries.pop(key, None)
        fields: list[Field]
        base: bytes | None = None
        if not self.soft:
            fields = self._key_fields(key, NULL)
        elif isinstance(known, bytes):
            fields = split_row(known, self.count)
        elif known is not None:
            fields, base = known.fields, known.base
        elif old is not None and None not in old:
            fields = old
        else:
            fields, base = self._key_fields(key, None), key
        gone, deleted_at = not self.soft, at if self.soft else None
        self._keep(key, RowChange(fields, base, gone, deleted_at))

    def _key_fields(self, key: bytes, other: Field) -> list[Field]:
        fields: list[Field] = [other] * self.count
        for place, part in zip(self.key, split_row(key, len(self.key)), strict=True):
            fields[place] = part
        return fields


@dataclass(slots=True)
class FoldedRows:
    """The rows of a fold as a binary COPY takes them, each with a number that rises."""

    fold: Fold
    ordinals: Sequence[int]
    """the places that the columns have in the landing table"""
    first: int
    """the number of the first row"""
    unfilled: bool = False
    deletes: bool = False

    def __iter__(self) -> Iterator[bytes]:
        key_columns = len(self.fold.key)
        width = 3 + key_columns + self.fold.count
        soft = self.fold.soft
        tail = (NULL if soft else _FALSE) + NULL + NULL * key_columns
        for number, entry in enumerate(self.fold.entries.values(), self.first):
            if isinstance(entry, bytes):
                yield _head(width, _EIGHT, number) + tail + entry
                continue
            flag = _TRUE if entry.gone else _FALSE
            if soft:
                flag = NULL if entry.deleted_at is None else _number(entry.deleted_at)
            self.deletes = self.deletes or entry.gone
            mask, base = NULL, NULL * key_columns
            fields = [NULL if one is None else one for one in entry.fields]
            if entry.base is not None and None in entry.fields:
                self.unfilled = True
                mask, base = self._mask(entry.fields), entry.base
            yield _head(width, _EIGHT, number) + flag + mask + base + b"".join(fields)

    def _mask(self, fields: Sequence[Field]) -> bytes:
        """A text with a 1 at the place of each column that is to be filled."""
        marks = bytearray(b"0" * (max(self.ordinals) + 1))
        for place, one in zip(self.ordinals, fields, strict=True):
            if one is None:
                marks[place] = 49
        return struct.pack(">I", len(marks)) + marks


def _number(value: int) -> bytes:
    return struct.pack(">4sq", _EIGHT, value)


NUMBER = "tidegate_number"
"""rises with every row: what comes later counts"""
DELETED = "tidegate_deleted"
"""hard deletes: the row with this key is gone"""
DELETED_AT = "deleted_at"
"""soft deletes: when it went; a column of the target as well"""
UNCHANGED = "tidegate_unchanged"
"""a text with a 1 at the place of each column whose value is that of the row `base`"""
BASE = "tidegate_base_"
"""and a number: the key of that row"""

_BLOCK_BYTES = 1 << 18


@dataclass(slots=True)
class LandingTable:
    """A table of one attempt, filled within one transaction."""

    connection: Connection
    table: sql.Identifier
    key: tuple[str, ...]
    soft: bool
    names: list[str] = field(default_factory=list)
    """every column that any row had, in the order of the marks of `UNCHANGED`"""

    @property
    def _own(self) -> list[tuple[str, str]]:
        flag = (DELETED_AT, "timestamptz") if self.soft else (DELETED, "boolean")
        bases = [(f"{BASE}{place}", "text") for place in range(len(self.key))]
        return [(NUMBER, "bigint"), flag, (UNCHANGED, "text"), *bases]

    def provide(self, names: Sequence[str]) -> None:
        """Make the table, or give it the columns that it lacks."""
        taken = {name for name, _ in self._own}
        clash = next((name for name in names if name in taken), None)
        if clash is not None:
            raise DeclarationError(
                f"the source has a column {clash}, which changes are loaded with",
                "rename that column at the source, or leave it out with exclude_columns",
            )
        new = [name for name in names if name not in self.names]
        columns = [(name, "text") for name in new]
        if not self.names:
            self.connection.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
                    self.table, _definitions([*self._own, *columns])
                )
            )
        elif new:
            self.connection.execute(
                sql.SQL("ALTER TABLE {} {}").format(
                    self.table,
                    sql.SQL(", ").join(
                        sql.SQL("ADD COLUMN {}").format(_definitions([one])) for one in columns
                    ),
                )
            )
        self.names += new

    def write(self, rows: Iterable[bytes], names: Sequence[str]) -> int:
        """Put rows in by one binary COPY, in large blocks; how many they were."""
        into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
            self.table, column_list([*(name for name, _ in self._own), *names])
        )
        cursor = self.connection.cursor()
        with cursor.copy(into) as copy:
            for block in _blocks(rows):
                copy.write(block)
        return cursor.rowcount

    def clear(self) -> None:
        """Everything that was landed so far is gone."""
        if self.names:
            self.connection.execute(sql.SQL("TRUNCATE {}").format(self.table))

    def mark_all(self, deleted_at: datetime) -> None:
        """Everything that was landed so far, and not deleted then, is now."""
        if self.names:
            self.connection.execute(
                sql.SQL("UPDATE {} SET {name} = %s WHERE {name} IS NULL").format(
                    self.table, name=sql.Identifier(DELETED_AT)
                ),
                (deleted_at,),
            )


def _blocks(rows: Iterable[bytes]) -> Iterable[bytes]:
    block = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
    size = 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    block.append(b"\xff\xff")
    yield b"".join(block)


def _definitions(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns
    )
