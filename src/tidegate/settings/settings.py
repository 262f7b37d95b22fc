"""The one object that holds every setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, field_serializer

from tidegate.errors import SettingsError
from tidegate.settings.cdc import CdcSettings
from tidegate.settings.connections import (
    CONTROL,
    MASK,
    Connections,
    ConnectionSettings,
    postgres_connection,
    unknown_connection,
)
from tidegate.settings.events import EventSettings
from tidegate.settings.explain import Key, Origin, Problem, explain, key_of, refuse
from tidegate.settings.history import HistorySettings
from tidegate.settings.layers import unknown_keys
from tidegate.settings.maintenance import MaintenanceSettings
from tidegate.settings.notify import NotifySettings
from tidegate.settings.scheduling import Places, SchedulerSettings
from tidegate.settings.section import Section
from tidegate.settings.sections import (
    LedgerSettings,
    ProjectSettings,
    SafetySettings,
    SparkSettings,
    SyncDefaults,
    SyncSettings,
    WorkerSettings,
)
from tidegate.settings.serving import ServeSettings

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
        key, origin = ("sync", name), Origin(where=where)
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


def name_problems(key: Key, origin: Origin) -> list[Problem]:
    """Return what is wrong with the name of a sync."""
    if SYNC_NAME.fullmatch(key[1]):
        return []
    rule = "begin with a letter, then up to 62 letters, digits and underscores"
    return [Problem(key, f"{origin.place(key)} is not a usable name for a sync; {rule}")]


def with_defaults(sync: Mapping[str, Any], defaults: SyncDefaults) -> dict[str, Any]:
    """Return the sync's table with what [defaults] sets below it."""
    return {**defaults.model_dump(exclude_unset=True), **sync}
