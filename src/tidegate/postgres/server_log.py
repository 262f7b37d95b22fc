"""The log of the embedded server, kept small while the server goes on writing it."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES = 10_000_000
_TAIL_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A file that the server appends to, and one more (`.1`) with what came before."""

    path: Path

    @property
    def earlier(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def trim(self) -> None:
        """Set a log that has grown too long aside; lines written just then may be lost.

        The server has the file open, so it is copied and emptied instead of renamed; each write
        goes to the end of the file as it is then.
        """
        if self.size <= LOG_BYTES:
            return
        with suppress(OSError), self.path.with_name("log.lock").open("w") as lock:
            # Whoever comes second need not wait: the first does it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.size > LOG_BYTES:
                self._set_aside()

    def _set_aside(self) -> None:
        unfinished = self.path.with_name(f"{self.path.name}.new")
        with self.path.open("rb") as full, unfinished.open("wb") as kept:
            # What is older than this was going to be forgotten the next time anyway.
            full.seek(max(0, self.size - LOG_BYTES))
            shutil.copyfileobj(full, kept, 1 << 20)
        unfinished.replace(self.earlier)
        os.truncate(self.path, 0)

    def read_from(self, start: int) -> str:
        return _read(self.path, start)

    def last_lines(self, count: int) -> list[str]:
        """How the log ends, also when it was just set aside."""
        lines: list[str] = []
        for path in (self.path, self.earlier):
            if len(lines) < count and path.exists():
                text = _read(path, max(0, path.stat().st_size - _TAIL_BYTES))
                lines = [*text.splitlines(), *lines]
        return lines[-count:]


def _read(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
