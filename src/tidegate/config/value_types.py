"""Types of single values and the base of all sections."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr

from tidegate.config.setting_errors import nearest
from tidegate.core.relation import split_parts
from tidegate.core.units import format_duration, parse_duration

EXPECTED = (
    '"embedded", "embedded:NAME", "postgresql://user@host/dbname" or '
    '"host=... dbname=..." ("service=..." too)'
)
_DATABASE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_KEYWORDS = re.compile(r"\s*[a-z_]+\s*=")


class Location(NamedTuple):
    """Either a database of the embedded server or a connection string."""

    embedded_database: str | None
    conninfo: str | None


def parse_location(text: str) -> Location:
    """Return what `text` points at; the ValueError never repeats it.

    >>> parse_location("embedded").embedded_database
    'tidegate'
    """
    text = text.strip()
    if text == "embedded":
        return Location("tidegate", None)
    if text.startswith("embedded:"):
        database = text.removeprefix("embedded:")
        if not _DATABASE.fullmatch(database):
            raise ValueError(
                '"embedded:NAME" where NAME is 1 to 63 letters, digits, dashes and underscores'
            )
        return Location(database, None)
    if "\0" not in text and (
        text.startswith(("postgresql://", "postgres://")) or _KEYWORDS.match(text)
    ):
        return Location(None, text)
    raise ValueError(EXPECTED + _advice(text))


def _advice(text: str) -> str:
    if text.startswith("jdbc:"):
        return "; leave out jdbc: and put user and password before the host"
    if re.match(r"postgres(ql)?\+\w+://", text):
        return "; leave out the driver, postgresql:// is enough"
    return "; it is empty" if not text else ""


_PROJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CONNECTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_COMMENT = re.compile(r"--[^\n]*(?:\n|$)|/\*.*?\*/", re.DOTALL)
_TRANSACTION = frozenset(
    ["ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"]
)
_RELATION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}:(?!//)\s*\S.*")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("text in quotes, not empty")
    return value


def _project_name(value: object) -> str:
    if not isinstance(value, str) or not _PROJECT_NAME.fullmatch(value):
        raise ValueError(
            "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
        )
    return value


def _identifier(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= 63 or "\0" in value:
        raise ValueError("a name of 1 to 63 bytes, in quotes")
    return value


def _schema(value: object) -> str:
    if isinstance(value, str) and value.lower().startswith("pg_"):
        raise ValueError('a name that does not begin with "pg_", which Postgres keeps for itself')
    return _identifier(value)


def _relation(value: object) -> str:
    if not isinstance(value, str) or not _RELATION.fullmatch(value):
        raise ValueError('"connection:schema.table", for example "shop:public.orders"')
    return value


def _control(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        raise ValueError('"embedded" or a Postgres URL')
    parse_location(value)
    return value


def duration(value: object) -> str:
    seconds = parse_duration(value)
    return value.strip() if isinstance(value, str) else format_duration(seconds)


def _positive_duration(value: object) -> str:
    if parse_duration(value) < 0.001:
        raise ValueError("a duration above zero")
    return duration(value)


def _lookback(value: object) -> str | int:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    try:
        return duration(value if isinstance(value, str) else None)
    except ValueError as error:
        raise ValueError(f"{error}, or a whole number for an integer cursor") from None


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    expected = f"a whole number from {low} to {high}" if high else f"a whole number, {low} or more"

    def check(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9][0-9_]{0,18}\s*", value):
            value = int(value.replace("_", ""))
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(expected)
        if not low <= value <= (high or 2**63 - 1):
            raise ValueError(expected)
        return value

    return check


def _key(value: object) -> tuple[str, ...]:
    columns = (value,) if isinstance(value, str) else value
    expected = 'a column or a list of different columns, for example "id" or ["shop", "id"]'
    if not isinstance(columns, list | tuple) or not columns:
        raise ValueError(expected)
    if any(not isinstance(column, str) or not column.strip() for column in columns):
        raise ValueError(expected)
    if len(set(columns)) != len(columns):
        raise ValueError(expected)
    return tuple(columns)


def _sql(value: object) -> str:
    text = _text(value).strip().rstrip(";").rstrip()
    if not text:
        raise ValueError("a piece of SQL in quotes")
    return text


def _statements(value: object) -> tuple[str, ...]:
    """Single statements that stay inside the transaction they are run in."""
    given = (value,) if isinstance(value, str) else value
    expected = 'a statement or a list of statements, for example "ANALYZE raw.orders"'
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(expected)
    found = []
    for one in given:
        if not isinstance(one, str) or not one.strip():
            raise ValueError(expected)
        text = _sql(one)
        word = _COMMENT.sub(" ", text).split(maxsplit=1)[0].upper()
        if word in _TRANSACTION:
            raise ValueError(f"statements that do not end the load's transaction ({word} would)")
        found.append(text)
    return tuple(found)


def _checks(value: object) -> dict[str, str]:
    expected = 'a table of names and conditions, for example { positive = "total >= 0" }'
    if not isinstance(value, dict) or not value:
        raise ValueError(expected)
    for name, condition in value.items():
        if not isinstance(condition, str) or not condition.strip() or not name.strip():
            raise ValueError(expected)
    return {name: _sql(condition) for name, condition in value.items()}


def _share(value: object) -> float:
    expected = 'a share from 0 to 1, or a percentage such as "5%"'
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = float(value.strip()[:-1]) / 100
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            share = float(value)
        else:
            raise ValueError(expected)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 <= share <= 1:
        raise ValueError(expected)
    return share


def _patterns(value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    expected = 'a pattern or a list of patterns, for example "order_*" or ["public.o*", "users"]'
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(expected)
    for one in given:
        if not isinstance(one, str) or not 1 <= len(split_parts(one)) <= 2:
            raise ValueError(expected)
    return tuple(given)


def _source(value: object) -> str:
    """A relation, or a connection alone for a query."""
    if isinstance(value, str) and _CONNECTION.fullmatch(value):
        return value
    return _relation(value)


def _timezone(value: object) -> str:
    from zoneinfo import ZoneInfo, available_timezones

    name = _text(value)
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        zones = available_timezones()
        if not zones:  # a machine without a zone database: the server will judge
            return name
        near = nearest(name, zones)
        raise ValueError(
            'a time zone such as "UTC" or "Europe/Berlin"'
            + (f'; did you mean "{near}"?' if near else "")
        ) from None
    return name


def _conf(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("a table of Spark settings")
    for name, setting in value.items():
        if not isinstance(setting, str | int | float):
            raise ValueError(f'text, a number, true or false for "{name}"')
    return {
        name: str(setting).lower() if isinstance(setting, bool) else str(setting)
        for name, setting in value.items()
    }


def _table_properties(value: object) -> dict[str, str]:
    try:
        return _conf(value)
    except ValueError:
        raise ValueError(
            'a table of Iceberg\'s table properties, such as { "write.format.default" = "orc" }'
        ) from None


def _blank_is_none(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


def _remote(value: object) -> object:
    if not isinstance(value, str) or (value.strip() and not value.startswith("sc://")):
        raise ValueError('a Spark Connect URL, "sc://host:15002"')
    return _blank_is_none(value)


Text = Annotated[str, BeforeValidator(_text)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]
Identifier = Annotated[str, BeforeValidator(_identifier)]
Schema = Annotated[str, BeforeValidator(_schema)]
Relation = Annotated[str, BeforeValidator(_relation)]
Source = Annotated[str, BeforeValidator(_source)]
Sql = Annotated[str, BeforeValidator(_sql)]
Statements = Annotated[tuple[str, ...], BeforeValidator(_statements)]
Checks = Annotated[dict[str, str], BeforeValidator(_checks)]
Share = Annotated[float, BeforeValidator(_share)]
Duration = Annotated[str, BeforeValidator(duration)]
PositiveDuration = Annotated[str, BeforeValidator(_positive_duration)]
ProjectName = Annotated[str, BeforeValidator(_project_name)]
ControlLocation = Annotated[SecretStr, BeforeValidator(_control)]
Lookback = Annotated[str | int, BeforeValidator(_lookback)]
Columns = Annotated[tuple[str, ...], BeforeValidator(_key)]
TimeZone = Annotated[str, BeforeValidator(_timezone)]
SparkConf = Annotated[dict[str, str], BeforeValidator(_conf)]
TableProperties = Annotated[dict[str, str], BeforeValidator(_table_properties)]
TextOrNone = Annotated[str | None, BeforeValidator(_blank_is_none)]
Remote = Annotated[str | None, BeforeValidator(_remote)]
Attempts = Annotated[int, BeforeValidator(whole(1, 1_000))]
Concurrency = Annotated[int, BeforeValidator(whole(1, 256))]
Rows = Annotated[int, BeforeValidator(whole(1))]
Partitions = Annotated[int, BeforeValidator(whole(1, 1_024))]


class Section(BaseModel):
    """Frozen, no unknown keys, no input echoed in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        populate_by_name=True,
        defer_build=True,
    )


def keys_of(model: type[Section]) -> tuple[str, ...]:
    """Return the keys of a section as TOML writes them."""
    return tuple(field.alias or name for name, field in model.model_fields.items())
