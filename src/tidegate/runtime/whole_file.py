"""A file that is there whole or as it was before, whenever the machine dies."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tidegate.failpoints import reach

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
