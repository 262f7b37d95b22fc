"""Layers of settings, later wins; every value remembers the layer it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.settings.explain import Key, Origin, Problem, spell, unknown_key, wrong_value
from tidegate.settings.section import keys_of
from tidegate.settings.sections import FIXED, SECTIONS, SyncSettings

Table = dict[str, Any]


@dataclass(slots=True)
class Layers:
    """The merged values so far, where each was written, and what was wrong on the way."""

    values: Table = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, values: Mapping[str, Any], origin: Origin) -> None:
        """Put one layer on top."""
        layer = flatten_free_tables(values)
        self.problems += unknown_keys(layer, origin)
        self.values = merge(self.values, layer)
        self._record((), layer, origin)

    def add_at(self, key: Key, value: Any, origin: Origin) -> None:
        """Put a layer of one value on top."""
        for part in reversed(key):
            value = {part: value}
        self.add(value, origin)

    def origin(self, key: Key) -> Origin:
        """Return the layer of `key`, or of the nearest table around it."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, Origin())

    def _record(self, key: Key, value: Any, origin: Origin) -> None:
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


def unknown_keys(values: Mapping[str, Any], origin: Origin) -> list[Problem]:
    """Return every key in one layer that is no setting, and every table that is none."""
    problems: list[Problem] = []
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
    key: Key, table: Mapping[str, Any], known: tuple[str, ...], origin: Origin
) -> list[Problem]:
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
