"""`[connections]`: each resolved only when it is used, none ever shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, SecretStr, field_serializer

from tidegate.config.files import interpolate, variables_in
from tidegate.config.setting_errors import (
    Key,
    SettingOrigin,
    SettingProblem,
    did_you_mean,
    refuse,
    unknown_key,
    wrong_value,
)
from tidegate.config.value_types import EXPECTED, Section, parse_location

MASK = "**********"
CONTROL = "control"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_POSTGRES_KEYS = ("type", "url")


class ConnectionSettings(Section):
    """One database or catalog; `url` and `options` are secret."""

    name: str
    type: Literal["postgres", "iceberg"]
    url: SecretStr | None = None
    embedded_database: str | None = None
    options: dict[str, Any] = Field(default_factory=dict, repr=False)

    @field_serializer("options")
    def _mask_options(self, options: dict[str, Any]) -> dict[str, str]:
        return dict.fromkeys(options, MASK)


class Connections(Mapping[str, ConnectionSettings]):
    """The declared connections by name; getting one resolves its variables."""

    __slots__ = ("_origins", "_raw", "_variables")

    def __init__(
        self,
        raw: Mapping[str, Any],
        variables: Mapping[str, str],
        origins: Mapping[Key, SettingOrigin],
    ) -> None:
        wanted = {name for text in _texts(raw) for name in variables_in(text)}
        self._raw = dict(raw)
        self._variables = {name: variables[name] for name in wanted if name in variables}
        self._origins = {
            key: origin for key, origin in origins.items() if key[:1] == ("connections",)
        }

    def __getitem__(self, name: str) -> ConnectionSettings:
        problems: list[SettingProblem] = []
        value = self._interpolated(("connections", name), self._raw[name], problems)
        refuse(problems)
        connection = self._read(name, value, problems)
        refuse(problems)
        assert connection is not None
        return connection

    def __contains__(self, name: object) -> bool:
        return name in self._raw  # the inherited one would resolve it

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __repr__(self) -> str:
        return f"Connections({', '.join(self._raw)})"

    def is_lake(self, name: str) -> bool:
        value = self._raw[name]
        return isinstance(value, Mapping) and value.get("type") == "iceberg"

    def problems(self) -> list[SettingProblem]:
        """Return what is wrong whatever the variables hold; the rest waits until used."""
        found: list[SettingProblem] = []
        for name, value in self._raw.items():
            key = ("connections", name)
            if not _NAME.fullmatch(name):
                text = "is not a usable name; begin with a letter, then letters, digits, _ and -"
                found.append(SettingProblem(key, f"{self._origin(key).place(key)} {text}"))
            elif name == CONTROL:
                text = "is the name of the control database; set project.control instead"
                found.append(SettingProblem(key, f"{self._origin(key).place(key)} {text}"))
            elif not any("${" in text for text in _texts(value)):
                self._read(name, value, found)
        return found

    def _origin(self, key: Key) -> SettingOrigin:
        while key and key not in self._origins:
            key = key[:-1]
        return self._origins.get(key, SettingOrigin())

    def _interpolated(self, key: Key, value: Any, problems: list[SettingProblem]) -> Any:
        if isinstance(value, Mapping):
            return {k: self._interpolated((*key, k), v, problems) for k, v in value.items()}
        if isinstance(value, list):
            return [self._interpolated(key, item, problems) for item in value]
        origin = self._origin(key)
        if not isinstance(value, str) or not origin.interpolated:
            return value
        try:
            return interpolate(value, self._variables)
        except ValueError as error:
            problems.append(SettingProblem(key, f"{origin.name(key)} {error}"))
            return value

    def _read(
        self, name: str, value: Any, problems: list[SettingProblem]
    ) -> ConnectionSettings | None:
        key = ("connections", name)
        if isinstance(value, str):
            return self._postgres(name, key, value, problems)
        if not isinstance(value, Mapping):
            problems.append(wrong_value(self._origin(key), key, value, f"{EXPECTED}, or a table"))
            return None
        kind = value.get("type", "postgres" if "url" in value else None)
        if kind == "iceberg":
            return self._iceberg(name, key, value, problems)
        if kind != "postgres":
            where = (*key, "type")
            expected = 'type = "postgres" with a url, or type = "iceberg"'
            problems.append(wrong_value(self._origin(where), where, kind, expected))
            return None
        for part in value:
            if part not in _POSTGRES_KEYS:
                where = (*key, part)
                origin = self._origin(where)
                problems.append(unknown_key(origin, where, _POSTGRES_KEYS, "the keys here are"))
        where = (*key, "url")
        if "url" in value:
            return self._postgres(name, where, value["url"], problems)
        problems.append(SettingProblem(where, f"{self._origin(where).place(where)} is missing"))
        return None

    def _iceberg(
        self, name: str, key: Key, value: Mapping[str, Any], problems: list[SettingProblem]
    ) -> ConnectionSettings | None:
        """Every option but `type` and `catalog` is Iceberg's own, and handed on as text.

        Where only an address is given, it tells the kind of catalog.
        """
        options: dict[str, str] = {}
        for option, given in _flat(value):
            if option == "type":
                continue
            if not isinstance(given, str | int | float) or given == "":
                where = (*key, option)
                problems.append(wrong_value(self._origin(where), where, given, "text or a number"))
                continue
            options[option] = str(given).lower() if isinstance(given, bool) else str(given)
        if "catalog" not in options and "uri" in options:
            scheme = options["uri"].partition(":")[0]
            options["catalog"] = {"thrift": "hive", "jdbc": "jdbc"}.get(scheme, "rest")
        return ConnectionSettings(name=name, type="iceberg", options=options)

    def _postgres(
        self, name: str, key: Key, value: Any, problems: list[SettingProblem]
    ) -> ConnectionSettings | None:
        origin = self._origin(key)
        if not isinstance(value, str):
            problems.append(wrong_value(origin, key, value, EXPECTED))
            return None
        try:
            return postgres_connection(name, value)
        except ValueError as error:
            problems.append(wrong_value(origin, key, value, str(error)))
            return None


def postgres_connection(name: str, text: str) -> ConnectionSettings:
    """Return the connection that `text` describes; ValueError says what was expected."""
    location = parse_location(text)
    return ConnectionSettings(
        name=name,
        type="postgres",
        url=None if location.conninfo is None else SecretStr(location.conninfo),
        embedded_database=location.embedded_database,
    )


def unknown_connection(name: str, known: Mapping[str, Any]) -> tuple[str, str]:
    """Return message and hint for a connection that is not declared."""
    near = did_you_mean(name, known) if known else ""
    message = f'there is no connection "{name}"' + (near if near.endswith("?") else "")
    declared = ", ".join(sorted(known)) or "none"
    return message, f"[connections] in tidegate.toml declares: {declared}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`s3.endpoint = …` is a table in a table for TOML, and one option for Iceberg."""
    for name, given in value.items():
        if isinstance(given, Mapping):
            yield from _flat(given, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", given


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
