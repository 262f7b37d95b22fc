"""File, profile, environment and flags laid over each other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.config.sections import FIXED, SECTIONS, SyncSettings
from tidegate.config.setting_errors import (
    Key,
    SettingOrigin,
    SettingProblem,
    nearest,
    spell,
    unknown_key,
    wrong_value,
)
from tidegate.config.value_types import keys_of

Table = dict[str, Any]


@dataclass(slots=True)
class Layers:
    """The merged values so far, where each was written, and what was wrong on the way."""

    values: Table = field(default_factory=dict)
    origins: dict[Key, SettingOrigin] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)

    def add(self, values: Mapping[str, Any], origin: SettingOrigin) -> None:
        """Put one layer on top."""
        layer = flatten_free_tables(values)
        self.problems += unknown_keys(layer, origin)
        self.values = merge(self.values, layer)
        self._record((), layer, origin)

    def add_at(self, key: Key, value: Any, origin: SettingOrigin) -> None:
        """Put a layer of one value on top."""
        for part in reversed(key):
            value = {part: value}
        self.add(value, origin)

    def origin(self, key: Key) -> SettingOrigin:
        """Return the layer of `key`, or of the nearest table around it."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, SettingOrigin())

    def _record(self, key: Key, value: Any, origin: SettingOrigin) -> None:
        if isinstance(value, Mapping):
            self.origins.setdefault(key, origin)  # a table belongs to whoever wrote it first
            for part, item in value.items():
                self._record((*key, part), item, origin)
        else:
            self.origins[key] = origin


def merge(base: Mapping[str, Any], later: Mapping[str, Any], key: Key = ()) -> Table:
    """Return both tables as one: tables merge, anything else is replaced by `later`."""
    merged = dict(base)
    for part, value in later.items():
        old = merged.get(part)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            another_kind = key == ("connections",) and any(
                value.get(what, old.get(what)) != old.get(what) for what in ("type", "catalog")
            )
            merged[part] = dict(value) if another_kind else merge(old, value, (*key, part))
        else:
            merged[part] = value
    return merged


def flatten_free_tables(values: Mapping[str, Any]) -> Table:
    """Return `values` with a.b.c = 1 under spark.conf and a connection as "a.b.c" = 1.

    Their keys are other programs' and hold dots that TOML and overrides take for tables.
    """
    flat = dict(values)
    spark, connections = flat.get("spark"), flat.get("connections")
    if isinstance(spark, Mapping) and isinstance(spark.get("conf"), Mapping):
        flat["spark"] = {**spark, "conf": _flatten(spark["conf"])}
    if isinstance(connections, Mapping):
        flat["connections"] = {
            name: _flatten(value) if isinstance(value, Mapping) else value
            for name, value in connections.items()
        }
    return flat


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Table:
    flat: Table = {}
    for part, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{part}."))
        else:
            flat[prefix + part] = value
    return flat


def unknown_keys(values: Mapping[str, Any], origin: SettingOrigin) -> list[SettingProblem]:
    """Return every key in one layer that is no setting, and every table that is none."""
    problems: list[SettingProblem] = []
    for section, table in values.items():
        if section not in SECTIONS:
            problems.append(unknown_key(origin, (section,), SECTIONS, "the sections are"))
        elif not isinstance(table, Mapping):
            problems.append(wrong_value(origin, (section,), table, f"a table, [{section}]"))
        elif section in FIXED:
            problems += _unknown_in((section,), table, keys_of(FIXED[section]), origin)
        elif section == "sync":
            for name, sync in table.items():
                key = (section, name)
                if isinstance(sync, Mapping):
                    problems += _unknown_in(key, sync, keys_of(SyncSettings), origin)
                else:
                    problems.append(wrong_value(origin, key, sync, f"a table, [{spell(key)}]"))
    return problems


def _unknown_in(
    key: Key, table: Mapping[str, Any], known: tuple[str, ...], origin: SettingOrigin
) -> list[SettingProblem]:
    return [
        unknown_key(origin, (*key, part), known, "the keys here are")
        for part in table
        if part not in known
    ]


def map_text(
    value: Any, change: Callable[[Key, str], str], key: Key = (), skip: Key | None = None
) -> Any:
    """Return `value` with every text in it changed, apart from what lies at `skip`."""
    if key == skip:
        return value
    if isinstance(value, Mapping):
        return {k: map_text(v, change, (*key, k), skip) for k, v in value.items()}
    if isinstance(value, list):
        return [map_text(item, change, key, skip) for item in value]
    return change(key, value) if isinstance(value, str) else value


PREFIX = "TIDEGATE_"
RESERVED = frozenset({"PROFILE", "PROJECT_DIR", "FAILPOINT", "LOG"})
# What Kubernetes sets in every pod beside a service called tidegate or tidegate-anything.
_SERVICE_LINK = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)
# Keys whose text may look like another TOML value, such as a project called 2024.
_TEXT_KEYS = {
    ("project", key) for key in ("name", "control", "control_schema", "pipelines", "state")
} | {("ledger", "schema"), ("ledger", "marker_table"), ("spark", "master"), ("spark", "remote")}
_SYNC_TEXT_KEYS = {"source", "target", "cursor", "cursor_timezone", "schedule", "timezone"}


def add_environment(layers: Layers, variables: Mapping[str, str], where: str) -> None:
    """Put every TIDEGATE_* variable on top of `layers`."""
    for variable in sorted(variables):
        name = variable.upper()
        if not name.startswith(PREFIX) or _is_reserved(name.removeprefix(PREFIX)):
            continue
        origin = SettingOrigin(where=where, variable=variable)
        key = setting_key(variable[len(PREFIX) :], layers.values)
        if key is None:
            layers.problems.append(_unknown(origin, variable, layers.values))
        else:
            layers.add_at(key, parse_value(key, variables[variable]), origin)


def setting_key(name: str, existing: Mapping[str, Any]) -> Key | None:
    """Return the key that SECTION__KEY names, or None; chosen names match what exists.

    >>> setting_key("SYNC__ORDERS__BATCH_ROWS", {"sync": {"Orders": {}}})
    ('sync', 'Orders', 'batch_rows')
    """
    section, *rest = name.split("__")
    section = section.lower()
    if section not in SECTIONS or not all(rest):
        return None
    if not rest:
        return (section,)
    table = _table(existing.get(section))
    if section in FIXED:
        key = rest[0].lower()
        if (section, key) == ("spark", "conf") and len(rest) > 1:
            return section, key, _free_key(rest[1:], _table(table.get(key)))
        return (section, key) if len(rest) == 1 and key in keys_of(FIXED[section]) else None
    chosen, rest = _chosen_name(rest, table)
    if not rest:
        return section, chosen
    if section == "connections":
        return section, chosen, _free_key(rest, _table(table.get(chosen)))
    key = rest[0].lower()
    return (section, chosen, key) if len(rest) == 1 and key in keys_of(SyncSettings) else None


def parse_value(key: Key, text: str) -> Any:
    """Return `text` as the TOML value it spells, otherwise as it is."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if parsed.keys() != {"value"}:  # a text with line breaks that happens to be more TOML
        return text
    value = parsed["value"]
    is_text = key in _TEXT_KEYS or (key[0] == "sync" and key[-1] in _SYNC_TEXT_KEYS)
    return value if isinstance(value, str | dict | list) or not is_text else text


def _is_reserved(name: str) -> bool:
    if name in RESERVED or name.startswith("TEST_"):
        return True
    # No service's name has two dashes before its port, so that SERVE__PORT is a setting.
    return "__" not in name and bool(_SERVICE_LINK.fullmatch(name))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _chosen_name(parts: list[str], table: Mapping[str, Any]) -> tuple[str, list[str]]:
    known = {_plain(name): name for name in table}
    for length in range(len(parts), 0, -1):  # a name may itself hold a double underscore
        name = known.get(_plain("__".join(parts[:length])))
        if name is not None:
            return name, parts[length:]
    return _lower_shouting(parts[0]), parts[1:]


def _free_key(parts: list[str], table: Mapping[str, Any]) -> str:
    known = {_plain(name): name for name in table}
    return known.get(_plain(".".join(parts)), ".".join(_lower_shouting(part) for part in parts))


def _lower_shouting(part: str) -> str:
    """Spark's keys are case-sensitive: coalescePartitions stays, MASTER becomes master."""
    return part.lower() if part.isupper() else part


def _names(existing: Mapping[str, Any]) -> Iterator[str]:
    for section, model in FIXED.items():
        for key in keys_of(model):
            yield f"{section}__{key}"
    for name in _table(existing.get("connections")):
        yield f"connections__{name}"
    for name in _table(existing.get("sync")):
        for key in keys_of(SyncSettings):
            yield f"sync__{name}__{key}"


def _unknown(origin: SettingOrigin, variable: str, existing: Mapping[str, Any]) -> SettingProblem:
    near = nearest(variable[len(PREFIX) :], _names(existing))
    ending = f"did you mean {PREFIX}{near.upper()}?" if near else "write TIDEGATE_SECTION__KEY"
    return SettingProblem((), f"{origin.name(())} is not a setting; {ending}")
