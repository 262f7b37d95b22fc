"""Tidegate.toml and .env: found, read, ${VAR} filled in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.config.setting_errors import FILE
from tidegate.core.errors import SettingsError

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


_LINE = re.compile(r"\s*(?:export\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(?P<rest>.*)")
_DOUBLE = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'(?P<text>[^']*)'\s*(?:#.*)?")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables in `path`, none when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{path.name}: cannot be read: {reason}") from None
    return parse_dotenv(text, path.name)


def parse_dotenv(text: str, name: str = ".env") -> dict[str, str]:
    """Return the variables in `text`; the error names lines, never what stands in them."""
    variables: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            problems.append(f"{name}: line {number} is not KEY=value")
        elif (value := _value(match["rest"])) is None:
            problems.append(f"{name}: line {number} ({match['key']}) has an unfinished quote")
        else:
            variables[match["key"]] = value
    if problems:
        raise SettingsError("\n".join(problems))
    return variables


def _value(rest: str) -> str | None:
    if rest.startswith('"'):
        quoted = _DOUBLE.fullmatch(rest)
        return quoted and _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), quoted["text"])
    if rest.startswith("'"):
        quoted = _SINGLE.fullmatch(rest)
        return quoted and quoted["text"]
    return _COMMENT.sub("", rest).strip()


_TOKEN = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<malformed>\$\{)"
)


class UnsetVariable(ValueError):
    """The text needs a variable that is not set."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"needs the variable {variable}, which is not set; set it in the environment or in "
            f".env, or write ${{{variable}:-default}}"
        )
        self.variable = variable


class MalformedReference(ValueError):
    """The text has a `${` that begins no reference."""

    def __init__(self) -> None:
        super().__init__(
            "has a ${ that is not ${VAR} or ${VAR:-default}; write $${ for a literal ${"
        )


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with its references replaced; what they bring in is not looked at again.

    >>> interpolate("${HOST:-localhost}:5432", {})
    'localhost:5432'
    """

    def replace(token: re.Match[str]) -> str:
        if token["escape"]:
            return "${"
        if token["malformed"]:
            raise MalformedReference
        value = variables.get(token["name"])
        if token["default"] is not None:
            return value or token["default"]  # as in a shell, :- also replaces an empty value
        if value is None:
            raise UnsetVariable(token["name"])
        return value

    return _TOKEN.sub(replace, text)


def variables_in(text: str) -> set[str]:
    """Return the names that `text` refers to."""
    return {token["name"] for token in _TOKEN.finditer(text) if token["name"]}
