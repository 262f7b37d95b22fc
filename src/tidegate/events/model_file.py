"""The model's TOML file and its rules."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from tidegate.config.setting_errors import did_you_mean, spell
from tidegate.core.errors import DeclarationError, SettingsError
from tidegate.core.relation import MAX_NAME_BYTES, Relation
from tidegate.events.model import Dimension, EventField, EventModel, EventView, FieldType, JsonPath
from tidegate.events.values import Unreadable, default_of, reader_of

_SKIPPED = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$[A-Za-z_]*\$).*?\1""",
    re.DOTALL,
)
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\s*\()?")
_CALLED = frozenset(
    [
        "now",
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "timeofday",
        "random",
        "random_normal",
        "gen_random_uuid",
        "uuidv4",
        "uuidv7",
    ]
)
_SPOKEN = frozenset(
    ["current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)


def query_problem(query: str) -> str | None:
    """Why a view cannot have this query, or None."""
    plain = _SKIPPED.sub(" '' ", query).strip()
    words = [(word.lower(), bool(call)) for word, call in _WORD.findall(plain)]
    if ";" in plain.rstrip("; \n"):
        return "holds more than one statement"
    if not words or words[0][0] not in ("select", "with"):
        return "is not a SELECT"
    for word, is_call in words:
        if word in _SPOKEN or (word in _CALLED and is_call):
            shown = f"{word}()" if word in _CALLED else word
            return (
                f"uses {shown}, so that every refresh would rewrite every row; "
                "mv_refresh_log says when it was refreshed"
            )
    return None


FACT_COLUMNS = frozenset(["event_hash", "loaded_in"])
DIMENSION_COLUMNS = frozenset(["first_seen_at", "last_seen_at", "attributes_at", "attributes_hash"])
# fact_events_2026_11
_MONTH_BYTES = 8


def model_problems(model: EventModel) -> Iterator[str]:
    """Everything that is wrong with a model, each beginning with the key it is written at."""
    yield from _facts(model)
    for dimension in model.dimensions:
        yield from _check_dimension(dimension)
    yield from _agreement(model)
    yield from _relations(model)
    for view in model.views:
        problem = query_problem(view.query)
        if problem is not None:
            yield f"view {view.name} {problem}"


def _facts(model: EventModel) -> Iterator[str]:
    columns = {field.name: field for field in model.columns}
    partition = columns.get(model.partition_column)
    at = f'facts.partition is "{model.partition_column}"'
    if partition is None:
        yield f"{at}, which is no column of the facts"
    else:
        if partition.type is not FieldType.TIMESTAMPTZ:
            yield f"{at}, which is a {partition.type}; it must be a timestamptz"
        if not partition.required:
            yield f"{at}, which is not required; an event without it belongs to no month"
        if partition.name not in model.hashed:
            yield f"{at}, which is not in facts.hashed; a unique index over months must hold it"
    keys = [field.name for one in model.dimensions for field in one.key]
    if not model.hashed:
        yield "facts.hashed is empty; name what makes two events the same"
    for name in model.hashed:
        if name not in columns and name not in keys:
            yield f'facts.hashed has "{name}", which is no column of the facts and no key'
    for name in _repeated(model.hashed):
        yield f'facts.hashed has "{name}" twice'
    in_facts = [*columns, *(one.fact_column for one in model.dimensions)]
    for name in _repeated(in_facts):
        yield f'the facts would have "{name}" twice; a dimension brings its own column along'
    for name in FACT_COLUMNS.intersection(in_facts):
        yield f'facts.columns has "{name}", a name that Tidegate keeps for itself'
    for field in model.columns:
        yield from _check_field(f"facts.columns.{field.name}", field)


def _check_dimension(dimension: Dimension) -> Iterator[str]:
    at = f"dimensions.{dimension.name}"
    fields = [*dimension.key, *dimension.attributes]
    names = [field.name for field in fields]
    if not dimension.key:
        yield f"{at}.key is empty; name what tells its rows apart"
    if len(dimension.key) > 1 and dimension.id_column is None:
        yield f"{at}.id is missing; a key of several columns needs a name for what stands for it"
    if len(dimension.key) == 1 and dimension.id_column is not None:
        yield f"{at}.id is not needed; a key of one column stands in the facts itself"
    for field in dimension.key:
        if field.type is FieldType.JSONB:
            yield f"{at}.key.{field.name} is jsonb, which tells no rows apart"
    if dimension.id_column is not None:
        names.append(dimension.id_column)
    for name in _repeated(names):
        yield f'{at} has "{name}" twice'
    for name in DIMENSION_COLUMNS.intersection(names):
        yield f'{at} has "{name}", a name that Tidegate keeps for itself'
    for field in fields:
        yield from _check_field(f"{at}.{field.name}", field)


def _check_field(at: str, field: EventField) -> Iterator[str]:
    if not 1 <= len(field.name.encode()) <= MAX_NAME_BYTES or "\0" in field.name:
        yield f"{at} is not a name of 1 to {MAX_NAME_BYTES} bytes"
    if field.required and field.default is not None:
        yield f"{at} is required and has a default; give one of them"
    if field.max_length is not None and field.type is not FieldType.TEXT:
        yield f"{at} has a max_length, which only a text has"
    try:
        default_of(field, reader_of(field))
    except Unreadable as error:
        yield f"{at}.default is {error}"


def _agreement(model: EventModel) -> Iterator[str]:
    """A name used twice must mean the same, since it is read once."""
    known = {field.name: field for field in model.fields}
    for dimension in model.dimensions:
        for field in (*dimension.key, *dimension.attributes):
            if known[field.name] != field:
                yield (
                    f'dimensions.{dimension.name} has "{field.name}" with another path or type '
                    "than elsewhere; use another name"
                )
    ids = Counter(one.id_column for one in model.dimensions if one.id_column in known)
    for name in ids:
        yield f'"{name}" is the id of a dimension and a field; use another name'


def _relations(model: EventModel) -> Iterator[str]:
    tables = [model.facts, *(one.table for one in model.dimensions)]
    for relation in _repeated(str(one) for one in (*tables, *(v.name for v in model.views))):
        yield f"{relation} is named twice; each table and view needs a name of its own"
    if len(model.facts.name.encode()) > MAX_NAME_BYTES - _MONTH_BYTES:
        yield (
            f"facts.table is {model.facts}; its partitions need {_MONTH_BYTES} bytes more than "
            "its name, and Postgres takes 63"
        )
    for view in model.views:
        if not view.unique:
            yield f"view {view.name} has no unique columns, which a refresh beside readers needs"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


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
            f"{path.name}: {error}", "docs/reference/event-model.md shows a whole model"
        ) from None
    problems = list(model_problems(model))
    if problems:
        raise SettingsError(
            "\n".join(f"{path.name}: {one}" for one in problems),
            "docs/reference/event-model.md shows a model",
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
            _read_dimension(_table(dimensions, name, ("dimensions",)), name)
            for dimensions in (_table(written, "dimensions", ()),)
            for name in dimensions
        ),
        tuple(_view(one, folder) for one in views),
    )


def _read_dimension(written: Mapping[str, Any], name: str) -> Dimension:
    at = ("dimensions", name)
    _only(written, ("table", "key", "attributes", "id"), at)
    return Dimension(
        name,
        _relation(written, "table", at),
        _fields(written, "key", at),
        _fields(written, "attributes", at) if "attributes" in written else (),
        _text(written, "id", at) if "id" in written else None,
    )


def _view(written: Any, folder: Path) -> EventView:
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
    return EventView(
        _relation(written, "name", at), query.strip().rstrip(";"), _names(written, "unique", at)
    )


def _fields(written: Mapping[str, Any], key: str, at: tuple[str, ...]) -> tuple[EventField, ...]:
    table = _table(written, key, at)
    return tuple(
        _read_field(_table(table, name, (*at, key)), name, (*at, key, name)) for name in table
    )


def _read_field(written: Mapping[str, Any], name: str, at: tuple[str, ...]) -> EventField:
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
    return EventField(
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
