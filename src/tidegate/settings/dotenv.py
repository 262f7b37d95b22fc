"""The `.env` file: KEY=value lines, read without expansion."""

from __future__ import annotations

import re
from pathlib import Path

from tidegate.errors import SettingsError

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
