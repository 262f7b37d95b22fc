"""The control plane: its schema, its identity and its sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import DestinationError, TidegateError
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import statement
from tidegate.sql import migrations, script

_FOLDER = "control/migrations"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Where the control tables are, and a way to open sessions on them."""

    connect: Callable[[], Connection]
    schema: str = "tidegate_control"

    @property
    def sequence(self) -> str:
        return sql.Identifier(self.schema, "fence_tokens").as_string(None)

    def statement(self, table: str, name: str) -> sql.Composed:
        return statement(f"control/{table}", name, schema=sql.Identifier(self.schema))

    def identity(self, connection: Connection) -> UUID:
        row = connection.execute(
            sql.SQL("SELECT control_id FROM {}.control_plane").format(sql.Identifier(self.schema))
        ).fetchone()
        if row is None:
            raise TidegateError(
                f"schema {self.schema} in the control database has lost its identity",
                "restore it from a backup, or drop the schema to start a new control plane",
            )
        return UUID(str(row[0]))

    def version(self, connection: Connection) -> int:
        """The newest migration applied; 0 when there is no control plane yet."""
        try:
            row = connection.execute(
                sql.SQL("SELECT max(version) FROM {}.schema_migrations").format(
                    sql.Identifier(self.schema)
                )
            ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return 0
        return int(row[0] or 0) if row else 0

    def migrate(self, connection: Connection) -> int:
        """Apply what is missing, one process at a time; returns the version reached."""
        newest = migrations(_FOLDER)[-1][0]
        current = self.version(connection)
        if current == newest:
            return newest
        if current > newest:
            raise TidegateError(
                f"the control database is at schema version {current}, this Tidegate knows "
                f"{newest}",
                "use the Tidegate that the other processes of this project use",
            )
        try:
            with connection.transaction():
                self._apply(connection)
        except pg.InsufficientPrivilege as error:
            raise DestinationError(
                f"role {connection.info.user} may not create schema {self.schema} in the control "
                f"database {connection.info.dbname}: {first_line(error)}",
                f"as its owner: CREATE SCHEMA {self.schema} AUTHORIZATION {connection.info.user}",
            ) from None
        return newest

    def _apply(self, connection: Connection) -> None:
        schema = sql.Identifier(self.schema)
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('tidegate:' || %s, 0))", (self.schema,)
        )
        exists = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (self.schema,)
        ).fetchone()
        if not (exists and exists[0]):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {}.schema_migrations"
                " (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            ).format(schema)
        )
        current = self.version(connection)
        for version, file in migrations(_FOLDER):
            if version > current:
                connection.execute(sql.SQL(script(file)).format(schema=schema))
                connection.execute(
                    sql.SQL("INSERT INTO {}.schema_migrations (version) VALUES ({})").format(
                        schema, sql.Literal(version)
                    )
                )
