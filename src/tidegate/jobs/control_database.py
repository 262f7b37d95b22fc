"""Schema, identity, sessions and fence tokens of the control database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import DestinationError, TidegateError
from tidegate.jobs.job import Claim
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import script, statement, statements

# The first makes the schema at version 1; each that follows brings it to the next version.
SCHEMA_SCRIPTS = ("jobs/schema",)


def newest_version() -> int:
    """The version of the control schema that this Tidegate works with."""
    return len(SCHEMA_SCRIPTS)


@dataclass(frozen=True, slots=True)
class DrainState:
    """Since when no new job is taken in, and by whose word."""

    since: datetime
    by: str


@dataclass(frozen=True, slots=True)
class ControlDatabase:
    """Where the control tables are, and a way to open sessions on them."""

    connect: Callable[[], Connection]
    schema: str = "tidegate_control"

    @property
    def sequence(self) -> str:
        return sql.Identifier(self.schema, "fence_tokens").as_string(None)

    def statement(self, file: str, name: str) -> sql.SQL:
        return _statement(self.schema, file, name)

    def claiming(self, pick: str, limit: int = 1) -> sql.SQL:
        """The claim of the jobs, so many at most, that a statement of job_queue picks."""
        return _composed(self.schema, "claim_jobs", pick, limit)

    def finishing(self) -> sql.SQL:
        """The end of several jobs."""
        return _composed(self.schema, "finish_jobs", "pick_ready", 1)

    def turning(self, limit: int) -> sql.SQL:
        """The end of several jobs and the claim of those that are ready, so many at most."""
        return _composed(self.schema, "take_turn", "pick_ready", limit)

    def channel(self, subject: str) -> str:
        """What is listened on to hear of new `jobs` or of `cancels`."""
        digest = hashlib.sha256(self.schema.encode()).hexdigest()[:8]
        return f"tidegate_{subject}_{digest}"

    def draining(self, connection: Connection) -> DrainState | None:
        """Since when no new job is taken in; None when they are."""
        row = connection.execute(
            self.statement("jobs/control_plane", "get_draining"), {}
        ).fetchone()
        return DrainState(*row) if row else None

    def start_draining(self, connection: Connection, actor: str) -> bool:
        """Take no new jobs in; False when that was so already."""
        done = connection.execute(
            self.statement("jobs/control_plane", "start_draining"), {"actor": actor}
        )
        return done.rowcount == 1

    def stop_draining(self, connection: Connection) -> bool:
        """Take jobs in again; False when that was so already."""
        return (
            connection.execute(self.statement("jobs/control_plane", "stop_draining"), {}).rowcount
            == 1
        )

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
        """The version of the schema; 0 when there is no control plane yet."""
        try:
            # Of its own, so that a caller's transaction outlives a schema that is not there.
            with connection.transaction():
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
        newest = newest_version()
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
            "SELECT pg_advisory_xact_lock(hashtextextended('tidegate:' || %s, 0::bigint))",
            (self.schema,),
        )
        exists = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", (self.schema,)
        ).fetchone()
        if not (exists and exists[0]):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        current = self.version(connection)
        for version, file in enumerate(SCHEMA_SCRIPTS[current:], current + 1):
            connection.execute(sql.SQL(script(file)).format(schema=schema))
            connection.execute(
                sql.SQL("INSERT INTO {}.schema_migrations (version) VALUES ({})").format(
                    schema, sql.Literal(version)
                )
            )


@cache
def _statement(schema: str, file: str, name: str) -> sql.SQL:
    return _written_out(statement(file, name, schema=sql.Identifier(schema)))


@cache
def _composed(schema: str, name: str, pick: str, limit: int) -> sql.SQL:
    """A statement that is made of parts which others have too."""
    identifier = sql.Identifier(schema)
    picked = statement("jobs/job_queue", pick, schema=identifier, limit=sql.Literal(limit))
    texts = statements("jobs/jobs")
    quoted = _literal(identifier)
    claiming = sql.SQL(texts["claiming"]).format(schema=quoted, picked=picked)
    finishing = sql.SQL(texts["finishing"]).format(schema=quoted)
    return _written_out(sql.SQL(texts[name]).format(claiming=claiming, finishing=finishing))


def _written_out(composed: sql.Composed) -> sql.SQL:
    """Text instead of pieces: a worker runs a few statements thousands of times."""
    return sql.SQL(composed.as_string(None))


def _literal(identifier: sql.Identifier) -> sql.SQL:
    return sql.SQL(identifier.as_string(None).replace("%", "%%"))


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one control plane; a restored one is lifted above what destinations saw."""

    plane: ControlDatabase

    def next(self, connection: Connection) -> int:
        """A token without a claim, for whoever raises a fence against an attempt."""
        row = connection.execute(
            self.plane.statement("jobs/fence_tokens", "next_token"),
            {"sequence": self.plane.sequence},
        ).fetchone()
        assert row is not None
        return int(row[0])

    def has_issued(self, connection: Connection, token: int) -> bool:
        """Whether a token may be one of ours; if not, this database is older than it."""
        row = connection.execute(
            self.plane.statement("jobs/fence_tokens", "last_token"),
            {"sequence": self.plane.sequence},
        ).fetchone()
        return row is not None and row[0] is not None and token <= row[0]

    def next_above(self, connection: Connection, seen: int) -> int:
        """A token above one seen in a destination, as all later ones will be."""
        connection.execute(
            self.plane.statement("jobs/fence_tokens", "reseed_tokens"),
            {"sequence": self.plane.sequence, "token": seen},
        )
        return self.next(connection)

    def reissue(self, connection: Connection, claim: Claim, above: int) -> int | None:
        """A token above one seen in a destination; None when the attempt is stale."""
        self.next_above(connection, above)
        row = connection.execute(
            self.plane.statement("jobs/fence_tokens", "reissue_fence"),
            {
                "sequence": self.plane.sequence,
                "job_id": claim.job_id,
                "attempt_id": claim.attempt_id,
            },
        ).fetchone()
        return int(row[0]) if row else None
