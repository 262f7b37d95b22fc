"""A project in a folder and databases of its own, for one test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from tidegate.model.relation import Endpoint
from tidegate.postgres.identifiers import qualified
from tidegate.project import Project
from tidegate.settings import Settings, load_settings
from tidegate.spark.session import SparkSessions
from tidegate.testing.databases import FreshDatabases
from tidegate.testing.lake_trial import embedded_lake, read_lake

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
            if not settings.is_lake(name)
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

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, in a database or in a lake, as Python values.

        >>> project.rows("lake:raw.orders")[0]["id"]                 # doctest: +SKIP
        """
        target = Endpoint.parse(table)
        if self.context.is_lake(target.connection):
            return read_lake(self.context, target)
        with self.connect(target.connection) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return cursor.execute(
                sql.SQL("SELECT * FROM {}").format(qualified(target.relation))
            ).fetchall()

    def close(self) -> None:
        """Close the sessions; Spark stays for the next test."""
        self.context.databases.close()
