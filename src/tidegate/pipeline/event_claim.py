"""A claim on events: one transaction on one connection, from the first lock to the commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import psycopg
from psycopg import errors as pg

from tidegate.pipeline.event_apply import Applied, EventApplication
from tidegate.pipeline.event_isolation import EventIsolation, is_refusal
from tidegate.pipeline.events import Events
from tidegate.postgres.commits import has_committed
from tidegate.postgres.connect import Connection, session_lost
from tidegate.postgres.identifiers import qualified, statement

# How long a claim may sit while its events are staged; a stopped process gives them back then.
_STAGING_SECONDS = 900.0
# Who applies does not idle.
_APPLYING_SECONDS = 30.0
# A batch of the usual size is sorted in memory.
_SORTING = "SET LOCAL work_mem = '32MB'"
_TRIES = 10
_PASSING = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable)


class EventClaim:
    """Holds events of one batch after the other; what is not committed was never claimed."""

    def __init__(
        self,
        events: Events,
        connect: Callable[[], Connection],
        *,
        lock_timeout_seconds: float,
        statement_timeout_seconds: float,
    ) -> None:
        self._events = events
        self._connect = connect
        self._lock_timeout = lock_timeout_seconds
        self._statement_timeout = statement_timeout_seconds
        self._connection: Connection | None = None

    def take(self, size: int) -> list[UUID]:
        """The ids of the events that are held now, oldest first; none: there are none to take."""
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN")
        idle = max(_STAGING_SECONDS, 2 * self._events.settings.time_budget_seconds)
        self._bound(connection, idle)
        rows = connection.cursor(binary=True).execute(
            statement("events/processing", "claim_events", raw=qualified(self._events.raw)),
            {"size": size},
        )
        ids = [row[0] for row in rows]
        if not ids:
            connection.execute("ROLLBACK")
        return ids

    def apply(self, batch: EventApplication) -> Applied:
        """Write a batch; where others were in the way it is done again, with the same events.

        Events that the tables refuse are made to fail, so that they do not hold up the others.
        """
        assert self._connection is not None
        connection = self._connection
        self._bound(connection, _APPLYING_SECONDS)
        connection.execute(_SORTING)
        # Going back to it undoes what was written, and keeps what is held.
        connection.execute("SAVEPOINT claimed")
        for number in range(1, _TRIES + 1):
            try:
                return batch.apply(connection)
            except psycopg.Error as error:
                passing = _is_passing(error)
                if number == _TRIES or not (passing or is_refusal(error)):
                    raise
                connection.execute("ROLLBACK TO SAVEPOINT claimed")
                if passing:
                    time.sleep(random.uniform(0.0, 0.05 * 2 ** min(number, 5)))
                else:
                    self._isolate(connection, batch, error)
        raise AssertionError("the last try returns or raises")

    def _isolate(
        self, connection: Connection, batch: EventApplication, error: psycopg.Error
    ) -> None:
        try:
            if not EventIsolation(batch).isolate(connection):
                raise error
        except psycopg.Error as other:
            if not _is_passing(other):
                raise
            connection.execute("ROLLBACK TO SAVEPOINT claimed")
            return
        # What was found out stays, whatever is undone later.
        connection.execute("RELEASE SAVEPOINT claimed")
        connection.execute("SAVEPOINT claimed")

    def commit(self, xid: str) -> None:
        """End the claim; a lost answer is looked up, never assumed."""
        assert self._connection is not None
        try:
            self._connection.execute("COMMIT")
        except psycopg.Error as error:
            if not session_lost(error):
                raise
            self.drop()
            if not has_committed(self._connect, xid, "writing a batch of events"):
                raise

    def drop(self) -> None:
        """Give back what is held, if there is a claim; in whatever state its session is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _bound(self, connection: Connection, idle_seconds: float) -> None:
        seconds = (self._lock_timeout, self._statement_timeout, idle_seconds)
        connection.execute(
            "SELECT set_config('lock_timeout', %s, true),"
            " set_config('statement_timeout', %s, true),"
            " set_config('idle_in_transaction_session_timeout', %s, true),"
            " set_config('client_connection_check_interval', '1s', true),"
            " set_config('synchronous_commit', 'on', true)",
            [f"{max(1, int(one * 1000))}ms" for one in seconds],
        )


def _is_passing(error: psycopg.Error) -> bool:
    """Whether the same may succeed now; a row without a partition violates no constraint."""
    if isinstance(error, pg.CheckViolation):
        return error.diag.constraint_name is None
    return isinstance(error, _PASSING)
