"""Settings: tidegate.toml, .env, profiles, TIDEGATE_* and flags as one frozen object."""

from __future__ import annotations

from tidegate.config.connections import Connections, ConnectionSettings
from tidegate.config.files import find_project
from tidegate.config.sections import (
    LedgerSettings,
    ProjectSettings,
    SparkSettings,
    SyncDefaults,
    SyncSettings,
    WorkerSettings,
)
from tidegate.config.settings import Settings, load_settings
from tidegate.core.units import format_duration, parse_duration

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
