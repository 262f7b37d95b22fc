"""From tidegate.toml, profile, environment and flags to one validated object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidegate.errors import SettingsError
from tidegate.settings.connections import Connections
from tidegate.settings.dotenv import read_dotenv
from tidegate.settings.environment import add_environment
from tidegate.settings.explain import (
    FILE,
    Key,
    Origin,
    Problem,
    did_you_mean,
    explain,
    key_of,
    refuse,
    wrong_value,
)
from tidegate.settings.file import read_file
from tidegate.settings.interpolate import interpolate
from tidegate.settings.layers import Layers, flatten_free_tables, map_text, unknown_keys
from tidegate.settings.section import keys_of
from tidegate.settings.sections import SyncDefaults
from tidegate.settings.settings import Settings, name_problems, with_defaults


def load_settings(
    root: Path,
    *,
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of the project in `root`; SettingsError lists all that is wrong.

    Later wins: tidegate.toml, its profile, TIDEGATE_* in .env, in the environment, `overrides`
    with dotted keys such as {"spark.master": "local[2]"}, where None means "not given".
    """
    root = Path(root).resolve()
    real = dict(os.environ if environ is None else environ)
    dotenv = read_dotenv(root / ".env")
    variables = {**dotenv, **real}
    written = read_file(root / FILE)
    profiles = written.pop("profile", {})
    profile = profile or variables.get("TIDEGATE_PROFILE") or None

    layers = Layers()
    layers.add(written, Origin())
    _add_profile(layers, profiles, profile)
    add_environment(layers, dotenv, ".env")
    add_environment(layers, real, "environment")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            layers.add_at(tuple(dotted.split(".")), value, Origin(where="option"))
    return _validate(layers, variables, root, profile)


def _add_profile(layers: Layers, profiles: Any, chosen: str | None) -> None:
    if not isinstance(profiles, Mapping):
        layers.problems.append(wrong_value(Origin(), ("profile",), profiles, "[profile.NAME]"))
        return
    if chosen is not None and chosen not in profiles:
        near = did_you_mean(chosen, profiles, "it has")
        known = f"; it has {', '.join(sorted(profiles))}" if near.endswith("?") else ""
        raise SettingsError(
            f'{FILE} has no profile "{chosen}"{near}{known}',
            hint=f"write [profile.{chosen}] in {FILE}, or choose another with --profile",
        )
    for name, values in profiles.items():
        origin = Origin(prefix=("profile", name))
        if not isinstance(values, Mapping):
            problem = wrong_value(Origin(), ("profile", name), values, f"a table, [profile.{name}]")
            layers.problems.append(problem)
        elif name == chosen:
            layers.add(values, origin)
        else:  # a misspelt key should not wait for the day its profile is first used
            layers.problems += unknown_keys(flatten_free_tables(values), origin)


def _validate(
    layers: Layers, variables: Mapping[str, str], root: Path, profile: str | None
) -> Settings:
    problems = layers.problems

    def replace(key: Key, text: str) -> str:
        origin = layers.origin(key)
        if not origin.interpolated:
            return text
        try:
            return interpolate(text, variables)
        except ValueError as error:
            problems.append(Problem(key, f"{origin.name(key)} {error}"))
            return text

    values = map_text(layers.values, replace, skip=("connections",))
    raw = values.get("connections", {})
    connections = Connections(raw if isinstance(raw, Mapping) else {}, variables, layers.origins)
    problems += connections.problems()
    values["sync"] = _syncs(layers, values)
    for name in values["sync"]:
        problems += name_problems(("sync", name), layers.origin(("sync", name)))
    values = {**values, "root": root, "profile": profile, "connections": connections}
    settings = None
    try:
        settings = Settings.model_validate({"project": {}, **values})
    except ValidationError as error:
        already = {problem.key for problem in problems}
        for one in error.errors(include_url=False):
            key = key_of(one["loc"])
            # Unknown keys and broken tables were reported already, in the user's own spelling.
            if one["type"] != "extra_forbidden" and key not in already:
                origin = layers.origin(_written(key, layers))
                problems.append(explain(dict(one), origin, key, values["sync"]))
    refuse(problems)
    assert settings is not None
    return settings


def _syncs(layers: Layers, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the syncs, each with [defaults] below it unless those are wrong themselves."""
    syncs = values.get("sync", {})
    if not isinstance(syncs, Mapping):
        return {}
    try:
        defaults = SyncDefaults.model_validate(values.get("defaults", {}))
    except ValidationError:
        return dict(syncs)
    return {
        name: with_defaults(sync, defaults) if isinstance(sync, Mapping) else sync
        for name, sync in syncs.items()
    }


def _written(key: Key, layers: Layers) -> Key:
    """Return where a key of a sync was really written: there, or in [defaults]."""
    default = ("defaults", key[-1])
    inherited = key[0] == "sync" and key not in layers.origins and default in layers.origins
    return default if inherited and key[-1] in keys_of(SyncDefaults) else key
