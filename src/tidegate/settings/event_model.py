"""The model of events as a TOML file says it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from tidegate.errors import DeclarationError, SettingsError
from tidegate.model.event_model import Dimension, EventModel, Field, FieldType, View
from tidegate.model.event_rules import model_problems
from tidegate.model.json_path import JsonPath
from tidegate.model.relation import Relation
from tidegate.settings.explain import did_you_mean, spell

_NUMERIC = re.compile(r"numeric(?:\s*\(\s*([0-9]{1,4})\s*(?:,\s*([0-9]{1,4})\s*)?\))?")
_FIELD = ("path", "type", "required", "default", "max_length", "examples")
_MAX_PRECISION = 1_000


class _Wrong(Exception):
    """What is wrong, at a key."""

    def __init__(self, key: Iterable[str], text: str) -> None:
        super().__init__(f"{spell(tuple(key))} {text}")


def read_event_model(path: Path) -> EventModel:
    """Read a model and check it; SettingsError names the file and every key that is wrong."""
    written = _read(path)
    try:
        model = _model(written, path.parent)
    except _Wrong as error:
        raise SettingsError(
            f"{path.name}: {error}", "docs/event-model.md shows a whole model"
        ) from None
    problems = list(model_problems(model))
    if problems:
        raise SettingsError(
            "\n".join(f"{path.name}: {one}" for one in problems),
            "docs/event-model.md shows a model",
        )
    return model


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"), parse_float=Decimal)
    except FileNotFoundError:
        raise SettingsError(
            f"{path.name}: there is no such file in {path.parent}",
            "`tidegate init --template events` writes one; events.model names another",
        ) from None
    except OSError as error:
        raise SettingsError(f"{path.name}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML, or UTF-8
        raise SettingsError(f"{path.name}: {error}") from None


def _model(written: Mapping[str, Any], folder: Path) -> EventModel:
    _only(written, ("facts", "dimensions", "views"), ())
    facts = _table(written, "facts", ())
    _only(facts, ("table", "columns", "partition", "hashed"), ("facts",))
    views = written.get("views", [])
    if not isinstance(views, list):
        raise _Wrong(("views",), "is not a list; write [[views]] for each")
    return EventModel(
        _relation(facts, "table", ("facts",)),
        _fields(facts, "columns", ("facts",)),
        _text(facts, "partition", ("facts",)),
        _names(facts, "hashed", ("facts",)),
        tuple(
            _dimension(_table(dimensions, name, ("dimensions",)), name)
            for dimensions in (_table(written, "dimensions", ()),)
            for name in dimensions
        ),
        tuple(_view(one, folder) for one in views),
    )


def _dimension(written: Mapping[str, Any], name: str) -> Dimension:
    at = ("dimensions", name)
    _only(written, ("table", "key", "attributes", "id"), at)
    return Dimension(
        name,
        _relation(written, "table", at),
        _fields(written, "key", at),
        _fields(written, "attributes", at) if "attributes" in written else (),
        _text(written, "id", at) if "id" in written else None,
    )


def _view(written: Any, folder: Path) -> View:
    if not isinstance(written, Mapping):
        raise _Wrong(("views",), "is not a list of tables; write [[views]] for each")
    at = ("views", str(written.get("name", "?")))
    _only(written, ("name", "file", "query", "unique"), at)
    if ("file" in written) == ("query" in written):
        raise _Wrong(at, "needs a file or a query, and not both")
    query = _text(written, "query" if "query" in written else "file", at)
    if "file" in written:
        try:
            query = (folder / query).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise _Wrong((*at, "file"), f'is "{query}", which cannot be read: {reason}') from None
    return View(
        _relation(written, "name", at), query.strip().rstrip(";"), _names(written, "unique", at)
    )


def _fields(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> tuple[Field, ...]:
    table = _table(written, key, at)
    return tuple(_field(_table(table, name, (*at, key)), name, (*at, key, name)) for name in table)


def _field(written: Mapping[str, Any], name: str, at: tuple[str, ...]) -> Field:
    _only(written, _FIELD, at)
    type_, precision, scale = _type(written, at)
    try:
        path = JsonPath.parse(_text(written, "path", at) if "path" in written else f"$.{name}")
    except DeclarationError as error:
        raise _Wrong((*at, "path"), f"is wrong: {error.message}; {error.hint}") from None
    required = written.get("required", False)
    if not isinstance(required, bool):
        raise _Wrong((*at, "required"), "is not true or false")
    max_length = written.get("max_length")
    if max_length is not None and (type(max_length) is not int or not 1 <= max_length <= 10**7):
        raise _Wrong((*at, "max_length"), "is not a whole number from 1")
    examples = written.get("examples", [])
    if not isinstance(examples, list):
        raise _Wrong((*at, "examples"), "is not a list")
    return Field(
        name,
        path,
        type_,
        required,
        _literal(written["default"], (*at, "default")) if "default" in written else None,
        precision,
        scale,
        max_length,
        tuple(_literal(one, (*at, "examples")) for one in examples),
    )


def _type(
    written: Mapping[str, Any], at: tuple[str, ...]
) -> tuple[FieldType, int | None, int | None]:
    text = " ".join(_text(written, "type", at).lower().split()) if "type" in written else "text"
    numeric = _NUMERIC.fullmatch(text)
    if numeric is not None:
        precision = int(numeric[1]) if numeric[1] else None
        scale = int(numeric[2] or 0) if numeric[1] else None
        if (
            precision is not None
            and scale is not None
            and not (1 <= precision <= _MAX_PRECISION and scale <= precision)
        ):
            raise _Wrong((*at, "type"), f'is "{text}"; expected a numeric such as numeric(18, 2)')
        return FieldType.NUMERIC, precision, scale
    try:
        return FieldType(text), None, None
    except ValueError:
        ending = did_you_mean(text, list(FieldType), "the types are")
        raise _Wrong((*at, "type"), f'is "{text}", which is not a type here{ending}') from None


def _literal(value: Any, at: tuple[str, ...]) -> str:
    """A value of TOML as the text that its field reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | Decimal):
        return str(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise _Wrong(at, "is not a text, a number, true, false or a moment")


def _only(written: Mapping[str, Any], known: Iterable[str], at: tuple[str, ...]) -> None:
    for key in written:
        if key not in known:
            raise _Wrong((*at, key), f"is not a setting{did_you_mean(key, known)}")


def _table(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> Mapping[str, Any]:
    found = written.get(key, {})
    if not isinstance(found, Mapping):
        raise _Wrong((*at, key), "is not a table")
    return found


def _text(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> str:
    if key not in written:
        raise _Wrong((*at, key), "is missing")
    found = written[key]
    if not isinstance(found, str) or not found.strip() or "\0" in found:
        raise _Wrong((*at, key), "is not text in quotes")
    return found


def _names(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> tuple[str, ...]:
    found = written.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise _Wrong((*at, key), "is not a list of names")
    return tuple(found)


def _relation(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> Relation:
    try:
        return Relation.parse(_text(written, key, at))
    except DeclarationError as error:
        raise _Wrong((*at, key), f"is wrong: {error.message}; {error.hint}") from None
