"""Fences: which attempt may publish into a table, and the lock that makes it hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.core.errors import BusyError, ControlMismatch, FenceLost
from tidegate.core.relation import Relation
from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connection import Connect, Connection, known_transaction
from tidegate.postgres.queries import statement

# Who holds a fence does not idle: a stopped one must not block others.
_IDLE_SECONDS = 30.0
_STATEMENT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Fence:
    """One attempt's right to publish into one table."""

    resource: str
    control_id: UUID
    token: int
    attempt_id: str


def publisher_name(attempt_id: str) -> str:
    """The application_name of an attempt's publishing session, by which it can be ended."""
    return f"tidegate publish {attempt_id}"


@dataclass(frozen=True, slots=True)
class Fences:
    """Raises and checks the fences of one ledger."""

    ledger: Ledger

    def raise_(self, fence: Fence, *, lock_timeout_seconds: float = 2.0) -> None:
        """Make `fence` the only one that may publish; what older attempts read is now stale."""
        with self.ledger.connect() as connection:
            for _ in range(5):
                try:
                    with connection.transaction():
                        connection.execute(
                            "SELECT set_config('lock_timeout', %s, true)",
                            (f"{int(lock_timeout_seconds * 1000)}ms",),
                        )
                        row = connection.execute(
                            self._statement("raise_fence"), _parameters(fence)
                        ).fetchone()
                except pg.LockNotAvailable:
                    self._end_publisher(connection, fence)
                    continue
                if row is None:
                    self._refuse(connection, fence)
                return
        raise BusyError(
            f"the fence of {fence.resource} is held by a session that does not end",
            "see pg_stat_activity in the destination for who; then run again",
        )

    def current(self, connection: Connection, resource: str) -> Fence | None:
        row = connection.execute(self._statement("get_fence"), {"resource": resource}).fetchone()
        return Fence(resource, *row) if row else None

    def lock(self, connection: Connection, fence: Fence) -> None:
        """Hold the fence row until the caller's transaction ends; FenceLost when it is not ours."""
        row = connection.execute(
            self._statement("lock_fence"), {"resource": fence.resource}
        ).fetchone()
        if row is None or Fence(fence.resource, *row) != fence:
            raise FenceLost(
                f"a newer attempt has taken {fence.resource}",
                "this attempt publishes nothing; the newer one carries on",
            )

    @contextmanager
    def transaction(
        self, connect: Connect, fence: Fence, doing: str, *, lock_timeout_seconds: float
    ) -> Iterator[Connection]:
        """A transaction of the attempt that has the fence, and of nobody else.

        Nothing in it waits or idles for ever, a newer attempt may end it, and how it ended is
        known: see known_transaction. FenceLost when the fence is not ours.
        """
        limits = {
            "application_name": publisher_name(fence.attempt_id),
            "lock_timeout": _milliseconds(lock_timeout_seconds),
            "statement_timeout": _milliseconds(_STATEMENT_SECONDS),
            "idle_in_transaction_session_timeout": _milliseconds(_IDLE_SECONDS),
            "synchronous_commit": "on",
        }
        with connect() as connection, known_transaction(connection, connect, doing):
            for name, value in limits.items():
                connection.execute("SELECT set_config(%s, %s, true)", (name, value))
            self.lock(connection, fence)
            yield connection

    def seize(self, connection: Connection, resource: str, control_id: UUID) -> bool:
        """Hand a table over to this control plane."""
        return (
            connection.execute(
                self._statement("seize_fence"), {"resource": resource, "control_id": control_id}
            ).rowcount
            == 1
        )

    def forget(self, connection: Connection, resource: str) -> None:
        connection.execute(self._statement("delete_fence"), {"resource": resource})

    def _end_publisher(self, connection: Connection, fence: Fence) -> None:
        held = self.current(connection, fence.resource)
        if held is not None and held.control_id == fence.control_id and held.token < fence.token:
            connection.execute(
                self._statement("end_publisher"), {"application": publisher_name(held.attempt_id)}
            )

    def _refuse(self, connection: Connection, fence: Fence) -> None:
        held = self.current(connection, fence.resource)
        if held is not None and held.control_id != fence.control_id:
            raise ControlMismatch(
                f"{fence.resource} is loaded by another control plane ({held.control_id})",
                "stop that one first, then hand the table over with: tidegate run NAME --take-over",
            )
        token = held.token if held else 0
        raise FenceTooLow(
            f"{fence.resource} has already been taken with token {token}",
            token=token,
            attempt_id=held.attempt_id if held else None,
        )

    def _statement(self, name: str) -> sql.Composed:
        return statement("ledger/fences", name, schema=self.ledger.schema_identifier)


class FenceTooLow(FenceLost):
    """The destination has seen a higher token than ours, from the attempt it names."""

    def __init__(self, message: str, *, token: int, attempt_id: str | None = None) -> None:
        super().__init__(message, "a newer attempt is at work, or the control database is older")
        self.token = token
        self.attempt_id = attempt_id


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"


def _parameters(fence: Fence) -> dict[str, object]:
    return {
        "resource": fence.resource,
        "control_id": fence.control_id,
        "token": fence.token,
        "attempt_id": fence.attempt_id,
    }


class FencedTable(Protocol):
    """A target as a job sees it: what it locks, who may publish into it, and what is in."""

    @property
    def relation(self) -> Relation: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def fences(self) -> Fences: ...

    @property
    def iceberg_catalog(self) -> str | None:
        """The connection whose catalog lists the table; None for a table in Postgres."""

    def open(self) -> AbstractContextManager[Connection]:
        """A session of the database that holds the ledger."""

    def identify(self) -> str:
        """What a job on this table locks, however many names lead to it."""

    def exists(self, update_id: str) -> bool:
        """Whether a load is in."""

    def raise_fence(self, fence: Fence) -> None:
        """Make this attempt the only one that may publish."""

    def heal(self, fence: Fence) -> None:
        """Record what an attempt before this one has published without saying so."""

    def discard(self, attempt_id: str, *, ended: bool = False) -> int:
        """Remove what an attempt staged; `ended` when all of its Spark work is known to be over.

        Of a job that failed, Spark's other tasks may still be writing.
        """

    def sweep(self, live_attempts: Callable[[], set[str]]) -> int:
        """Remove what this control plane's dead attempts staged."""
