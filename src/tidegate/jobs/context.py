"""Limits for a person's transaction: nothing waits for ever, nothing blocks others for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

from tidegate.config import Settings
from tidegate.core.errors import UsageError
from tidegate.core.relation import Endpoint
from tidegate.jobs.control_database import ControlDatabase, newest_version
from tidegate.ledger.fences import FencedTable
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import CONTROL, Databases


class JobContext(Protocol):
    """Settings, databases, the control plane, and the tables that jobs publish into."""

    settings: Settings
    databases: Databases
    plane: ControlDatabase

    def control_id(self) -> UUID:
        """The identity of the control plane, which is made on first use."""

    def is_lake(self, connection_name: str) -> bool:
        """Whether a connection leads to an Iceberg catalog, as opposed to a database."""

    def destination(self, target: Endpoint) -> FencedTable:
        """The table that a job is fenced into."""

    def table_written(self, control: Connection, table: FencedTable, *, anew: bool) -> None:
        """A job has written into a table; `anew`: maintenance may have changed it all over."""


@contextmanager
def control_session(context: JobContext) -> Iterator[Connection | None]:
    """A session; None when nothing ever ran, so that there is no control plane yet."""
    with context.databases.connect(CONTROL, "tidegate inspect") as connection:
        yield connection if has_jobs(context.plane, connection) else None


def has_jobs(plane: ControlDatabase, connection: Connection) -> bool:
    """Whether there is a control plane; raises when it is older than what reads it."""
    version, newest = plane.version(connection), newest_version()
    if 0 < version < newest:
        raise UsageError(
            f"the control database is at schema version {version}, this Tidegate needs {newest}",
            "bring it up to date with: tidegate db migrate",
        )
    return version > 0


_IDLE_SECONDS = 30.0


def bound_transaction(connection: Connection, context: JobContext) -> None:
    """Set timeouts that end with the transaction; a stopped process must not block others."""
    worker = context.settings.worker
    for name, seconds in (
        ("lock_timeout", worker.lock_timeout_seconds),
        ("statement_timeout", worker.lease_seconds),
        ("idle_in_transaction_session_timeout", _IDLE_SECONDS),
    ):
        connection.execute(
            "SELECT set_config(%s, %s, true)", (name, f"{max(1, int(seconds * 1000))}ms")
        )
