"""A project and fresh databases for one test."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row

from tidegate.config import Settings, load_settings
from tidegate.core.relation import Endpoint
from tidegate.postgres.connection import Connection, connect
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.postgres.queries import qualified
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.testing.oracle import embedded_lake, read_lake

_SCRATCH = "tidegate_scratch"
_KEPT = "tidegate_kept"


class FreshDatabases:
    """Makes databases on a running server and drops all it made, unless they are to be kept."""

    def __init__(self, server: EmbeddedServer, *, keep: bool = False) -> None:
        self.server = server
        self.keep = keep
        self._id = uuid.uuid4().hex[:8]
        self._names: list[str] = []
        self._admin = connect(server.conninfo("postgres"), name="the embedded server")
        # Whoever holds this lock is alive; what others left behind can be told by it.
        self._admin.execute("SELECT pg_advisory_lock(hashtext(%s))", (self._prefix(self._id),))
        self._sweep()

    def make(self, hint: str, template: str | None = None) -> str:
        """Create a database, empty or as a copy of one that nobody is connected to."""
        plain = re.sub(r"[^a-z0-9_]", "_", hint.lower())[:24]
        name = f"{self._prefix(self._id)}_{len(self._names)}_{plain}"
        self._names.append(name)
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template or "template1")
            )
        )
        return name

    def folder(self, name: str) -> Path:
        """A folder beside a database, which goes with it."""
        return self.server.directory.parent / "prove" / name

    def conninfo(self, name: str) -> str:
        return self.server.conninfo(name)

    def connect(self, name: str) -> Connection:
        return connect(self.server.conninfo(name), name=f"database {name}")

    def drop(self, *names: str) -> None:
        """Drop databases that are done with, so that many trials do not fill the disk."""
        if self.keep:
            return
        for name in names:
            self._drop(name)
            self._names.remove(name)

    def close(self) -> list[str]:
        """Drop what was made; the names of those that were kept."""
        try:
            if not self.keep:
                for name in self._names:
                    self._drop(name)
            return self._names if self.keep else []
        finally:
            self._admin.close()

    def _prefix(self, identifier: str) -> str:
        return f"{_KEPT if self.keep else _SCRATCH}_{identifier}"

    def _drop(self, name: str) -> None:
        """FORCE would be refused while a server process of another role, as autovacuum's, is there.

        Without it the server ends those itself, and waits for all.
        """
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = %s AND usename = current_user",
            (name,),
        )
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
        shutil.rmtree(self.folder(name), ignore_errors=True)

    def _sweep(self) -> None:
        """Drop what a killed predecessor left."""
        found = self._admin.execute(
            "SELECT datname, substring(datname FROM '^' || %s || '_[0-9a-f]{8}') FROM pg_database"
            " WHERE datname ~ ('^' || %s || '_[0-9a-f]{8}_')",
            (_SCRATCH, _SCRATCH),
        ).fetchall()
        for name, prefix in found:
            if prefix == self._prefix(self._id):
                continue
            row = self._admin.execute(
                "SELECT pg_try_advisory_lock(hashtext(%s))", (prefix,)
            ).fetchone()
            if row and row[0]:
                self._drop(name)
                self._admin.execute("SELECT pg_advisory_unlock(hashtext(%s))", (prefix,))


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
