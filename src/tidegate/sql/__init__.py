"""Named SQL statements, one file per table, and the schemas they work on.

A statement starts with a `-- name:` line; the comment line below it says what it is for.
`{schema}` stands for the configured schema and is always filled in as a quoted identifier.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)


@cache
def statements(file: str) -> dict[str, LiteralString]:
    """The statements of one file below this package, such as `ledger/fences`, by name."""
    text = files(__name__).joinpath(*f"{file}.sql".split("/")).read_text(encoding="utf-8")
    pieces = _NAME.split(text)[1:]
    found: dict[str, LiteralString] = {}
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        if name in found:
            raise ValueError(f"{file}.sql names {name} twice")
        found[name] = body.strip().rstrip(";")
    return found


def script(file: str) -> LiteralString:
    """A whole file, such as a schema or a migration."""
    return files(__name__).joinpath(*f"{file}.sql".split("/")).read_text(encoding="utf-8")


@cache
def migrations(folder: str) -> tuple[tuple[int, str], ...]:
    """(version, file) of every migration in a folder, in order."""
    names = sorted(
        item.name.removesuffix(".sql")
        for item in files(__name__).joinpath(*folder.split("/")).iterdir()
        if item.name.endswith(".sql")
    )
    return tuple((int(name.split("_", 1)[0]), f"{folder}/{name}") for name in names)
