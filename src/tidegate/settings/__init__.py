"""Settings: tidegate.toml, .env, profiles, TIDEGATE_* and flags as one frozen object."""

from tidegate.settings.connections import Connections, ConnectionSettings
from tidegate.settings.durations import format_duration, parse_duration
from tidegate.settings.file import find_project
from tidegate.settings.load import load_settings
from tidegate.settings.sections import (
    LedgerSettings,
    ProjectSettings,
    SparkSettings,
    SyncDefaults,
    SyncSettings,
    WorkerSettings,
)
from tidegate.settings.settings import Settings

__all__ = [
    "ConnectionSettings",
    "Connections",
    "LedgerSettings",
    "ProjectSettings",
    "Settings",
    "SparkSettings",
    "SyncDefaults",
    "SyncSettings",
    "WorkerSettings",
    "find_project",
    "format_duration",
    "load_settings",
    "parse_duration",
]
