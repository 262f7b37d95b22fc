"""tidegate.toml itself: finding it, reading it, and saying where it is malformed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tidegate.errors import SettingsError
from tidegate.settings.explain import FILE

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = re.compile(r"\s*[A-Za-z0-9_.-]+\s*=")
_HEADER = re.compile(r"\s*\[")
_MAY_HOLD_SECRET = re.compile(
    r"connection|control|conf|profile|://|passw|secret|token|webhook|host\s*=", re.IGNORECASE
)


def find_project(start: Path) -> Path:
    """Return the nearest folder, upwards from `start`, that holds tidegate.toml."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder
    raise SettingsError(
        f"no {FILE} in {start} or any folder above it",
        hint="run `tidegate init` to make a project here, change to a project's folder, or name "
        "it in TIDEGATE_PROJECT_DIR",
    )


def read_file(path: Path) -> dict[str, Any]:
    """Return the tables in `path`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(
            f"no {FILE} in {path.parent}", hint="run `tidegate init` to make a project here"
        ) from None
    except OSError as error:
        raise SettingsError(f"{FILE}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{FILE}: line {line} is not UTF-8 text") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(malformed(text, str(error))) from None


def _in_long_text(above: list[str]) -> bool:
    """Say whether a text of several lines is open, whose key stands further up."""
    return any("\n".join(above).count(quotes) % 2 for quotes in ('"""', "'''"))


def malformed(text: str, message: str) -> str:
    """Return where and why TOML could not be read, with the line unless it may hold a secret."""
    lines = text.replace("\r\n", "\n").split("\n")
    position = _POSITION.search(message)
    reason = _POSITION.sub("", message)
    if position is None or position[1] is None:
        number = max((n for n, line in enumerate(lines, 1) if line.strip()), default=1)
        column = len(lines[number - 1]) + 1
    else:
        number, column = int(position[1]), int(position[2])
    line = lines[number - 1] if number <= len(lines) else ""
    header = next((above for above in reversed(lines[:number]) if _HEADER.match(above)), "")
    shown, marker = line.rstrip(), " " * (column - 1) + "^"
    if _in_long_text(lines[: number - 1]):
        shown, marker = "***", ""
    elif _MAY_HOLD_SECRET.search(f"{header}\n{line}"):
        key = _KEY.match(line)
        shown, marker = f"{key[0]} ***" if key else "***", ""
    place = f"{FILE}: line {number}, column {column}: {reason}"
    return "\n".join(part for part in (place, f"    {shown}", f"    {marker}") if part.strip())
