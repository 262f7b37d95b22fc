"""TIDEGATE_SECTION__KEY variables as settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.settings.explain import Key, Origin, Problem, nearest
from tidegate.settings.layers import Layers
from tidegate.settings.section import keys_of
from tidegate.settings.sections import FIXED, SECTIONS, SyncSettings

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
        origin = Origin(where=where, variable=variable)
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


def _unknown(origin: Origin, variable: str, existing: Mapping[str, Any]) -> Problem:
    near = nearest(variable[len(PREFIX) :], _names(existing))
    ending = f"did you mean {PREFIX}{near.upper()}?" if near else "write TIDEGATE_SECTION__KEY"
    return Problem((), f"{origin.name(())} is not a setting; {ending}")
