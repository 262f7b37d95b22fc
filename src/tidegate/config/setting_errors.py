"""Where a setting was written and what is wrong with it, in words and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.core.errors import SettingsError

Key = tuple[str, ...]
FILE = "tidegate.toml"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TELLTALE = re.compile(r"://|passw|secret|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The layer that a value came from; `variable` for the environment and .env."""

    where: str = FILE
    prefix: Key = ()
    variable: str | None = None

    @property
    def interpolated(self) -> bool:
        """Only what is written in the TOML file may refer to variables."""
        return self.where == FILE

    def name(self, key: Key) -> str:
        """Return how the user wrote `key` in this layer."""
        return f"{self.where}: {self.variable or spell(self.prefix + key)}"

    def place(self, key: Key) -> str:
        """Return `key` with its layer, for something that is not written there but should be."""
        return f"{self.name(key)}: {spell(key)}" if self.variable else self.name(key)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One thing that is wrong, at one key."""

    key: Key
    text: str


class SettingConflict(ValueError):
    """Two keys of one section contradict each other; reported at `key`."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def refuse(problems: Iterable[SettingProblem]) -> None:
    """Raise one SettingsError that lists every problem on its own line, if there is any."""
    lines = list(dict.fromkeys(problem.text for problem in problems))
    if lines:
        raise SettingsError("\n".join(lines))


def spell(key: Key) -> str:
    """Return `key` dotted as TOML writes it."""
    return ".".join(_part(part) for part in key)


def key_of(location: tuple[int | str, ...]) -> Key:
    """Return pydantic's location as a key; positions inside a list belong to the list."""
    return tuple(part for part in location if isinstance(part, str))


def _part(part: str) -> str:
    if _BARE_KEY.fullmatch(part):
        return part
    return '"***"' if "://" in part else json.dumps(part, ensure_ascii=False)


def is_secret(key: Key) -> bool:
    """Say whether a value at `key` must never be shown."""
    return key[:1] == ("connections",) or key[:2] in {
        ("project", "control"),
        ("spark", "conf"),
        ("notify", "webhook"),
    }


def show(key: Key, value: object) -> str | None:
    """Return `value` as TOML writes it, or None where it is or may hold a secret."""
    if is_secret(key) or isinstance(value, Mapping):
        return None
    text = str(value).lower() if isinstance(value, bool) else None
    text = text or json.dumps(value, ensure_ascii=False, default=str)
    if _TELLTALE.search(text):
        return None
    return text if len(text) <= 80 else text[:76] + " ..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the entry of `known` that `word` was probably meant to be."""
    from difflib import get_close_matches  # only errors need it, and --help must stay quick

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], kind: str = "the keys here are") -> str:
    """Return the end of a sentence: the nearest right name, otherwise all of them."""
    names = sorted(known)
    near = nearest(word, names)
    if near is not None:
        return f'; did you mean "{near}"?'
    return f"; {kind} {', '.join(names)}" if names else ""


def unknown_key(origin: SettingOrigin, key: Key, known: Iterable[str], kind: str) -> SettingProblem:
    """Return the problem of a key that is no setting."""
    ending = did_you_mean(key[-1], known, kind)
    return SettingProblem(key, f"{origin.place(key)} is not a setting{ending}")


def wrong_value(origin: SettingOrigin, key: Key, value: object, expected: str) -> SettingProblem:
    """Return the problem of a value that does not fit its key."""
    shown = show(key, value)
    given = f"is {shown}" if shown is not None else "has a wrong value"
    return SettingProblem(key, f"{origin.name(key)} {given}; expected {expected}")


def missing_key(origin: SettingOrigin, key: Key, known_syncs: Iterable[str]) -> SettingProblem:
    """Return the problem of a required key that is not there."""
    text = f"{origin.place(key)} is missing"
    if key == ("project", "name"):
        text += f'; add [project] with name = "..." to {FILE}'
    elif key[0] == "sync":
        near = nearest(key[1], (name for name in known_syncs if name != key[1]))
        text += f'; write {key[-1]} = "connection:schema.table"'
        text += f', or did you mean the sync "{near}"?' if near and key[-1] == "source" else ""
    return SettingProblem(key, text)


def explain(
    error: Mapping[str, Any], origin: SettingOrigin, key: Key, known_syncs: Iterable[str]
) -> SettingProblem:
    """Return one of pydantic's errors in our words."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, SettingConflict):
        return SettingProblem((*key, cause.key), f"{origin.name((*key, cause.key))} {cause}")
    if error["type"] == "missing":
        return missing_key(origin, key, known_syncs)
    value = error.get("input")
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        expected = "one of " + ", ".join(f'"{choice}"' for choice in choices)
        near = nearest(value, choices) if isinstance(value, str) else None
        expected += f'; did you mean "{near}"?' if near else ""
        return wrong_value(origin, key, value, expected)
    expected = str(cause) if cause else _EXPECTED.get(error["type"], "another value")
    return wrong_value(origin, key, value, expected)


_EXPECTED = {
    "string_type": "text in quotes",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
