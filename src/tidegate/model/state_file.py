"""The state file: what a control plane still has to do, as JSON that shows any damage.

It is one JSON document, with each row on a line of its own, so that it is written and read row by
row. The last line holds the SHA-256 of every byte before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.errors import StateDamaged

FORMAT = "tidegate state"
VERSION = 1
_OPENS = ',"sections":{\n'
_SECTION = re.compile(rb'"([a-z_]{1,63})":\[\n')
_ROWS = re.compile(rb'\},"rows":([0-9]{1,18}),\n')
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"\}\n')
_KEPT = "it is kept as it is: restore it from a copy, or move it away to begin without it"


@dataclass(frozen=True, slots=True)
class StateHeader:
    """Whose state a file holds, and of when."""

    project: str
    control_id: UUID
    created_at: datetime
    fence_token: int
    """the newest token that had been issued"""


def write_state(
    header: StateHeader, sections: Iterable[tuple[str, Iterable[str]]]
) -> Iterator[bytes]:
    """The file in pieces; a row is the text of one JSON object without a line break."""
    digest = hashlib.sha256()
    for piece in _pieces(header, sections):
        data = piece.encode()
        digest.update(data)
        yield data
    yield f'"sha256":"{digest.hexdigest()}"}}\n'.encode()


def _pieces(header: StateHeader, sections: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "created_at": header.created_at.isoformat(),
        "project": header.project,
        "control_id": str(header.control_id),
        "fence_token": header.fence_token,
    }
    yield json.dumps(document, separators=(",", ":"))[:-1] + _OPENS
    count, before_section = 0, ""
    for name, rows in sections:
        yield f'{before_section}"{name}":[\n'
        before_row = ""
        for row in rows:
            yield before_row + row
            before_row = ",\n"
            count += 1
        yield "\n]" if before_row else "]"
        before_section = ",\n"
    yield ("\n" if before_section else "") + f'}},"rows":{count},\n'


def read_header(line: bytes) -> StateHeader:
    """The first line of a state file, of this version."""
    try:
        if not line.endswith(_OPENS.encode()):
            raise ValueError
        found = json.loads(line[: -len(_OPENS)] + b"}")
        if found["format"] != FORMAT:
            raise ValueError
        version = found["version"]
        if version != VERSION or isinstance(version, bool):
            raise StateDamaged(
                f"is a state file of version {version}; this Tidegate reads version {VERSION}",
                "use the Tidegate that wrote it; the file is kept as it is",
            )
        return StateHeader(
            _text(found["project"]),
            UUID(found["control_id"]),
            datetime.fromisoformat(found["created_at"]),
            int(found["fence_token"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StateDamaged(
            "is no state file of Tidegate, or its beginning is damaged", _KEPT
        ) from None


def read_rows(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Each row with the name of its section; raises where the file is not whole.

    What is wrong may only be known at its end: nothing of it may count before that.
    """
    reader = _Reader()
    for line in lines:
        if reader.ended:
            raise StateDamaged("goes on after its end", _KEPT)
        row = reader.take(line)
        if row is not None:
            yield row
    if not reader.ended:
        raise StateDamaged("is cut off", _KEPT)


def check_state(lines: Iterable[bytes]) -> StateHeader:
    """Read a file to its end; raises unless every byte of it is as it was written."""
    found = iter(lines)
    first = next(found, b"")
    header = read_header(first)
    for _ in read_rows(_chain(first, found)):
        pass
    return header


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


class _Reader:
    """Where in the file we are."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._place = "header"
        self._section = ""
        self._count = 0
        self.ended = False

    def take(self, line: bytes) -> tuple[str, str] | None:
        if self._place == "sum":
            self._end(line)
            return None
        self._digest.update(line)
        if self._place == "header":
            read_header(line)
            self._place = "sections"
        elif self._place == "sections":
            self._take_section(line)
        elif line in (b"]\n", b"],\n"):
            self._place = "sections"
        else:
            return self._take_row(line)
        return None

    def _take_section(self, line: bytes) -> None:
        opened, closed = _SECTION.fullmatch(line), _ROWS.fullmatch(line)
        if opened is not None:
            self._section, self._place = opened[1].decode(), "rows"
        else:
            self._refuse(closed is None or int(closed[1]) != self._count)
            self._place = "sum"

    def _take_row(self, line: bytes) -> tuple[str, str]:
        text = line.removesuffix(b"\n").removesuffix(b",")
        self._refuse(not (text.startswith(b"{") and text.endswith(b"}")))
        self._count += 1
        try:
            return self._section, text.decode()
        except UnicodeDecodeError:
            self._refuse(True)
            raise AssertionError from None

    def _end(self, line: bytes) -> None:
        found = _SUM.fullmatch(line)
        if found is None:
            raise StateDamaged("is cut off, or its end is damaged", _KEPT)
        self._refuse(found[1].decode() != self._digest.hexdigest())
        self.ended = True

    def _refuse(self, wrong: bool) -> None:
        if wrong:
            raise StateDamaged("is damaged: it is not what was written", _KEPT)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
