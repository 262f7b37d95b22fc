"""A project in a folder and databases of its own, for one test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tidegate.project import Project
from tidegate.settings import Settings, load_settings
from tidegate.spark.session import SparkSessions
from tidegate.testing.databases import FreshDatabases
from tidegate.testing.lake_trial import embedded_lake

_LEFT_OUT = shutil.ignore_patterns(
    ".tidegate", ".git", ".venv", "venv", "node_modules", "__pycache__", ".*_cache"
)


class SandboxProject(Project):
    """A copy of a project whose connections all lead to fresh, empty databases and lakes.

    Fill the source as you like, then run and look:

    >>> with project.connect("shop") as shop:                        # doctest: +SKIP
    ...     shop.execute("CREATE TABLE orders (…)")
    >>> project.run("orders").rows                                   # doctest: +SKIP
    """

    def __init__(
        self,
        settings: Settings,
        *,
        databases: FreshDatabases,
        names: dict[str, str],
        overrides: dict[str, Any],
    ) -> None:
        super().__init__(settings)
        self.databases = databases
        self.database_names = names
        self.overrides = overrides

    @classmethod
    def copy(
        cls, root: Path, folder: Path, databases: FreshDatabases, profile: str | None = None
    ) -> SandboxProject:
        """Copy the project in `root` to `folder`, which must not exist yet."""
        shutil.copytree(root, folder, ignore=_LEFT_OUT, symlinks=True)
        settings = load_settings(folder, profile=profile)
        names = {
            name: databases.make(name)
            for name in settings.connections
            if settings.connections.kind(name) == "postgres"
        }
        overrides: dict[str, Any] = {
            f"connections.{name}": databases.conninfo(database) for name, database in names.items()
        }
        overrides |= {
            f"connections.{name}": embedded_lake(folder / ".tidegate" / "lake" / name)
            for name in settings.connections
            if name not in names
        }
        overrides["project.control"] = databases.conninfo(databases.make("control"))
        overrides["project.state"] = ".tidegate"
        return cls(
            load_settings(folder, profile=profile, overrides=overrides),
            databases=databases,
            names=names,
            overrides=overrides,
        )

    def share_spark(self, sessions: SparkSessions) -> None:
        """Use a Spark that is already warm, and leave it running in the end."""
        self.context.spark = sessions

    def close(self) -> None:
        """Close the sessions; Spark stays for the next test."""
        self.context.databases.close()
