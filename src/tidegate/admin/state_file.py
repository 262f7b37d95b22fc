"""The state file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from tidegate.core.errors import StateDamaged
from tidegate.core.failpoints import reach

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


_LEFT_BEHIND_SECONDS = 3_600.0


def write_whole(path: Path, pieces: Iterable[bytes]) -> int:
    """Write a file beside `path` and put it in its place; returns its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".part")
    part, size = Path(name), 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        reach("state.written")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    _remove_left_behind(path.parent, prefix)
    return size


def put_aside(path: Path, word: str) -> Path:
    """Give a file another name beside the one it has, which no other file has had."""
    for number in range(1, 10_000):
        aside = path.with_name(f"{path.name}.{word}-{number}")
        try:
            os.link(path, aside)
        except FileExistsError:
            continue
        path.unlink()
        sync_folder(path.parent)
        return aside
    raise FileExistsError(f"{path} was put aside 9,999 times")


def sync_folder(folder: Path) -> None:
    """A name is only safe once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_left_behind(folder: Path, prefix: str) -> None:
    """Remove what writers that were killed have left."""
    for file in folder.iterdir():
        if file.name.startswith(prefix) and file.name.endswith(".part"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                    file.unlink()
