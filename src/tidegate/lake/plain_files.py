"""Files of a table by their plain paths, which are the same whoever writes them down.

Hadoop says file:/a/b where a table's metadata says file:///a/b, or s3a: for s3:.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(?=/)")
_NAMED_BY_HOST = ("hdfs", "viewfs")
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A file that is there."""

    path: str
    bytes: int
    modified_at: datetime | None


def plain_path(location: str) -> str:
    """A path without what leads to it: scheme and host, or bucket."""
    found = _PREFIX.match(location)
    return location[found.end() :] if found else location


class PlainFiles:
    """Looks at and deletes files in the place where a table lies."""

    def __init__(self, io: Any, location: str) -> None:
        found = _PREFIX.match(location)
        scheme, host = (found[1], found[2] or "") if found else ("file", "")
        self._files = io.fs_by_scheme(scheme, host)
        self._host = "" if scheme in _NAMED_BY_HOST else host

    def look(self, paths: Sequence[str]) -> list[PlainFile]:
        """Those that are there."""
        # Not through the FileIO, which takes a # in a name for the end of it.
        found = self._files.get_file_info([f"{self._host}{path}" for path in paths])
        return [
            PlainFile(path, one.size or 0, one.mtime)
            for path, one in zip(paths, found, strict=True)
            if one.is_file
        ]

    def delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Delete them; what could not be, with the reason."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            reasons = pool.map(self._delete, paths)
            return {path: why for path, why in zip(paths, reasons, strict=True) if why}

    def _delete(self, path: str) -> str | None:
        try:
            self._files.delete_file(f"{self._host}{path}")
        except FileNotFoundError:
            return None
        except OSError as error:
            return type(error).__name__
        return None
