"""Scripts of changes: as pgoutput messages, and as a dict that follows them one by one."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Row = tuple[int, int | None, str | None]
"""id, a plain value, a large one"""
KEYS = st.integers(0, 5)
VALUES = st.one_of(st.none(), st.integers(0, 9))
LARGE = st.one_of(st.none(), st.text("xyz", max_size=3))
Step = tuple[Any, ...]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), KEYS, VALUES, LARGE),
        st.tuples(st.just("update"), KEYS, VALUES),  # the large value is not sent
        st.tuples(st.just("rewrite"), KEYS, VALUES, LARGE),
        st.tuples(st.just("rekey"), KEYS, KEYS, st.booleans()),
        st.tuples(st.just("swap"), KEYS, KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("truncate")),
        st.tuples(st.just("commit")),
    ),
    max_size=25,
)
COLUMNS = (("id", 23), ("n", 23), ("body", 25))
OID = 4711


@dataclass(slots=True)
class Script:
    """Applies steps, as far as they make sense, and says what a server would say of them."""

    whole: bool
    """the replica identity is full"""
    soft: bool
    rows: dict[int, Row] = field(default_factory=dict)
    deleted: dict[int, tuple[Row, int]] = field(default_factory=dict)
    """soft deletes: what was there, and the transaction that took it"""
    transactions: int = 0
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    waiting: list[bytes] = field(default_factory=list)

    def play(self, steps: list[Step]) -> None:
        for step in steps:
            getattr(self, f"_{step[0]}")(*step[1:])
        self._commit()

    @property
    def now(self) -> int:
        """The commit time of the transaction at hand."""
        return 1_000_000 * (self.transactions + 1)

    def expected(self) -> list[tuple[Any, ...]]:
        if not self.soft:
            return sorted(self.rows.values())
        here = [(*row, None) for row in self.rows.values()]
        gone = [(*row, at) for row, at in self.deleted.values()]
        return sorted([*here, *gone], key=lambda row: row[0])

    def _insert(self, key: int, value: int | None, large: str | None) -> None:
        if key not in self.rows:
            self._put((key, value, large))
            self._say(b"I", b"N" + _tuple(self.rows[key]))

    def _update(self, key: int, value: int | None) -> None:
        if (old := self.rows.get(key)) is not None:
            self._put((key, value, old[2]))
            self._say(b"U", self._old(old, key) + b"N" + _tuple((key, value, ...)))

    def _rewrite(self, key: int, value: int | None, large: str | None) -> None:
        if (old := self.rows.get(key)) is not None:
            self._put((key, value, large))
            self._say(b"U", self._old(old, key) + b"N" + _tuple(self.rows[key]))

    def _rekey(self, key: int, new: int, sends: bool) -> None:
        if key in self.rows and new not in self.rows:
            old = self.rows[key]
            self._take(key)
            self._put((new, *old[1:]))
            after = self.rows[new] if sends else (*self.rows[new][:2], ...)
            self._say(b"U", self._old(old, new) + b"N" + _tuple(after))

    def _swap(self, one: int, other: int) -> None:
        if one != other and one in self.rows and other in self.rows:
            self._rekey(one, -1, False)
            self._rekey(other, one, False)
            self._rekey(-1, other, False)

    def _delete(self, key: int) -> None:
        if (old := self.rows.get(key)) is not None:
            self._take(key)
            tag, row = (b"O", old) if self.whole else (b"K", (key, None, None))
            self._say(b"D", tag + _tuple(row))

    def _truncate(self) -> None:
        for key in list(self.rows):
            self._take(key)
        self.waiting.append(b"T" + struct.pack(">IBI", 1, 0, OID))

    def _commit(self) -> None:
        if not self.waiting:
            return
        start = self.transactions * 1000 + 1000
        times = self.now
        self.transactions += 1
        begin = b"B" + struct.pack(">QqI", start + 900, times, 1)
        end = b"C" + struct.pack(">BQQq", 0, start + 900, start + 990, times)
        told = [begin, _relation(whole=self.whole), *self.waiting, end]
        self.messages += [(f"0/{start + place:X}", data) for place, data in enumerate(told)]
        self.waiting.clear()

    def _put(self, row: Row) -> None:
        self.rows[row[0]] = row
        self.deleted.pop(row[0], None)

    def _take(self, key: int) -> None:
        self.deleted[key] = (self.rows.pop(key), self.now)

    def _old(self, old: Row, new_key: int) -> bytes:
        if self.whole:
            return b"O" + _tuple(old)
        return b"" if old[0] == new_key else b"K" + _tuple((old[0], None, None))

    def _say(self, kind: bytes, data: bytes) -> None:
        self.waiting.append(kind + struct.pack(">I", OID) + data)


def _tuple(row: tuple[Any, ...]) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is ...:
            parts.append(b"u")
        else:
            text = str(value).encode()
            parts.append(b"t" + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def _relation(*, whole: bool) -> bytes:
    head = b"R" + struct.pack(">I", OID) + b"public\0orders\0" + (b"f" if whole else b"d")
    parts = [head, struct.pack(">H", len(COLUMNS))]
    for place, (name, kind) in enumerate(COLUMNS):
        flag = b"\1" if whole or place == 0 else b"\0"
        parts.append(flag + name.encode() + b"\0" + struct.pack(">Ii", kind, -1))
    return b"".join(parts)
