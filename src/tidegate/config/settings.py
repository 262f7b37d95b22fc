"""The Settings object and how it is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, field_serializer

from tidegate.config.connections import (
    CONTROL,
    MASK,
    Connections,
    ConnectionSettings,
    postgres_connection,
    unknown_connection,
)
from tidegate.config.files import interpolate, read_dotenv, read_file
from tidegate.config.layers import (
    Layers,
    add_environment,
    flatten_free_tables,
    map_text,
    unknown_keys,
)
from tidegate.config.maintenance import MaintenanceSettings
from tidegate.config.sections import (
    CdcSettings,
    LedgerSettings,
    Places,
    ProjectSettings,
    SafetySettings,
    SchedulerSettings,
    SparkSettings,
    SyncDefaults,
    SyncSettings,
    WorkerSettings,
)
from tidegate.config.service_sections import (
    EventSettings,
    HistorySettings,
    NotifySettings,
    ServeSettings,
)
from tidegate.config.setting_errors import (
    FILE,
    Key,
    SettingOrigin,
    SettingProblem,
    did_you_mean,
    explain,
    key_of,
    refuse,
    wrong_value,
)
from tidegate.config.value_types import Section, keys_of
from tidegate.core.errors import SettingsError

SYNC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


class Settings(Section):
    """Everything a project has set, validated and frozen; printing it shows no secret."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    root: Path
    profile: str | None = None
    project: ProjectSettings
    connections: Connections = Field(default_factory=lambda: Connections({}, {}, {}))
    spark: SparkSettings = Field(default_factory=SparkSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    ledger: LedgerSettings = Field(default_factory=LedgerSettings)
    defaults: SyncDefaults = Field(default_factory=SyncDefaults)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    serve: ServeSettings = Field(default_factory=ServeSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    resources: dict[str, Places] = Field(default_factory=dict)
    notify: NotifySettings = Field(default_factory=NotifySettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    cdc: CdcSettings = Field(default_factory=CdcSettings)
    events: EventSettings = Field(default_factory=EventSettings)
    safety: SafetySettings = Field(default_factory=SafetySettings)
    sync: dict[str, SyncSettings] = Field(default_factory=dict)

    @field_serializer("connections")
    def _mask_connections(self, connections: Connections) -> dict[str, str]:
        return dict.fromkeys(connections, MASK)

    @property
    def state_directory(self) -> Path:
        """The folder for everything Tidegate keeps on this machine."""
        return self.root / Path(self.project.state).expanduser()

    @property
    def state_file(self) -> Path | None:
        """Where the scheduler keeps the state, if it does."""
        path = self.scheduler.state_path
        return None if path is None else self.root / Path(path).expanduser()

    @property
    def pipelines_file(self) -> Path:
        """The Python file that declares syncs and tasks; it need not exist."""
        return self.root / Path(self.project.pipelines).expanduser()

    def connection(self, name: str) -> ConnectionSettings:
        """Return one connection with its variables resolved; "control" is always there."""
        if name == CONTROL:
            return postgres_connection(CONTROL, self.project.control.get_secret_value())
        if name not in self.connections:
            message, hint = unknown_connection(name, self.connections)
            raise SettingsError(message, hint=hint)
        return self.connections[name]

    def is_lake(self, name: str) -> bool:
        """Whether a connection leads to an Iceberg catalog; what it needs is not resolved."""
        if name != CONTROL and name not in self.connections:
            message, hint = unknown_connection(name, self.connections)
            raise SettingsError(message, hint=hint)
        return name != CONTROL and self.connections.is_lake(name)

    def make_sync(
        self, name: str, values: Mapping[str, Any], where: str = "pipelines.py"
    ) -> SyncSettings:
        """Return a sync declared in Python, with [defaults] below it and the same checks."""
        key, origin = ("sync", name), SettingOrigin(where=where)
        given = {part: value for part, value in values.items() if value is not None}
        problems = unknown_keys({"sync": {name: given}}, origin) + name_problems(key, origin)
        refuse(problems)
        try:
            return SyncSettings.model_validate(with_defaults(given, self.defaults))
        except ValidationError as error:
            found = [
                explain(dict(one), origin, (*key, *key_of(one["loc"])), self.sync)
                for one in error.errors(include_url=False)
            ]
        refuse(found)
        raise AssertionError("a validation error without errors")


def name_problems(key: Key, origin: SettingOrigin) -> list[SettingProblem]:
    """Return what is wrong with the name of a sync."""
    if SYNC_NAME.fullmatch(key[1]):
        return []
    rule = "begin with a letter, then up to 62 letters, digits and underscores"
    return [SettingProblem(key, f"{origin.place(key)} is not a usable name for a sync; {rule}")]


def with_defaults(sync: Mapping[str, Any], defaults: SyncDefaults) -> dict[str, Any]:
    """Return the sync's table with what [defaults] sets below it."""
    return {**defaults.model_dump(exclude_unset=True), **sync}


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
    layers.add(written, SettingOrigin())
    _add_profile(layers, profiles, profile)
    add_environment(layers, dotenv, ".env")
    add_environment(layers, real, "environment")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            layers.add_at(tuple(dotted.split(".")), value, SettingOrigin(where="option"))
    return _validate(layers, variables, root, profile)


def _add_profile(layers: Layers, profiles: Any, chosen: str | None) -> None:
    if not isinstance(profiles, Mapping):
        layers.problems.append(
            wrong_value(SettingOrigin(), ("profile",), profiles, "[profile.NAME]")
        )
        return
    if chosen is not None and chosen not in profiles:
        near = did_you_mean(chosen, profiles, "it has")
        known = f"; it has {', '.join(sorted(profiles))}" if near.endswith("?") else ""
        raise SettingsError(
            f'{FILE} has no profile "{chosen}"{near}{known}',
            hint=f"write [profile.{chosen}] in {FILE}, or choose another with --profile",
        )
    for name, values in profiles.items():
        origin = SettingOrigin(prefix=("profile", name))
        if not isinstance(values, Mapping):
            problem = wrong_value(
                SettingOrigin(), ("profile", name), values, f"a table, [profile.{name}]"
            )
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
            problems.append(SettingProblem(key, f"{origin.name(key)} {error}"))
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
