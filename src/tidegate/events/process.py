"""Phase 2: claim and process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from uuid import UUID

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import ConnectionFailed, DestinationError, StagingLost, TidegateError
from tidegate.core.failpoints import reach
from tidegate.events.apply import (
    AppliedEvents,
    EventApplication,
    EventIsolation,
    EventStatements,
    is_refusal,
)
from tidegate.events.model import BatchEnd, Processed
from tidegate.events.project_events import ProjectEvents
from tidegate.events.staging import EventReading, split, stage_events, stage_here
from tidegate.ledger.ledger import Staging
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, has_committed, session_lost, translate
from tidegate.postgres.queries import qualified, statement
from tidegate.spark.binary_copy import StagingPlace

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
        events: ProjectEvents,
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

    def apply(self, batch: EventApplication) -> AppliedEvents:
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


# Shares below this size cost more to hand out than they save.
_SHARE_EVENTS = 1_000
_LOSSES = 5
_APPLICATION = "tidegate process"


def process(
    context: Context,
    events: ProjectEvents,
    *,
    attempt_id: str,
    budget_seconds: float,
    check_alive: Callable[[], None],
    provision: Callable[[Collection[date]], None],
    max_batches: int | None = None,
) -> Processed:
    """Work the queue until it is empty or the budget is spent.

    `check_alive` raises when this attempt was replaced; `provision` makes partitions for months.
    """
    return _Processing(context, events, attempt_id, check_alive, provision).run(
        budget_seconds, max_batches
    )


@dataclass(slots=True)
class _Processing:
    context: Context
    events: ProjectEvents
    attempt_id: str
    check_alive: Callable[[], None]
    provision: Callable[[Collection[date]], None]
    _provisioned: set[date] = field(default_factory=set)

    def run(self, budget_seconds: float, max_batches: int | None) -> Processed:
        started = time.monotonic()
        ends: list[BatchEnd] = []
        worker = self.context.settings.worker
        claim = EventClaim(
            self.events,
            partial(self.context.databases.connect, self.events.connection, _APPLICATION),
            # Instances may wait for each other a batch long.
            lock_timeout_seconds=max(30.0, worker.lock_timeout_seconds),
            statement_timeout_seconds=worker.publish_timeout_seconds,
        )
        losses = 0
        try:
            while time.monotonic() - started < budget_seconds and (
                max_batches is None or len(ends) < max_batches
            ):
                self.check_alive()
                try:
                    end = self._batch(claim)
                except (ConnectionFailed, StagingLost):
                    # Nothing is to be undone: what was held is pending again.
                    losses += 1
                    claim.drop()
                    if losses >= _LOSSES:
                        raise
                    time.sleep(0.1 * 2**losses)
                    continue
                if end is None:
                    break
                losses = 0
                ends.append(end)
                self._provide(end)
        finally:
            claim.drop()
        return Processed.of(ends, left_pending=self._finish(), seconds=time.monotonic() - started)

    def _batch(self, claim: EventClaim) -> BatchEnd | None:
        """One batch from its claim to its commit; None when there is nothing to claim."""
        try:
            ids = claim.take(self.events.settings.batch_size)
            if not ids:
                return None
            reach("event.claimed")
            try:
                place = self._place()
                writes = self._stage(ids, place)
                reach("event.staged")
                tables = tuple(place.table(write.write_id) for write in writes)
                batch = EventApplication(self.events, self.attempt_id, len(ids), tables)
                applied = claim.apply(batch)
                self.check_alive()
                reach("event.applied")
                claim.commit(applied.xid)
                reach("event.committed")
            except BaseException:
                # The tables cannot be dropped while the claim reads them.
                claim.drop()
                with suppress(psycopg.Error, TidegateError):
                    self._discard()
                raise
            self._discard()
            return applied.end
        except psycopg.Error as error:
            if session_lost(error):
                raise translate(error, "processing events") from error
            raise translate(error, f"processing events of {self.events.raw}") from error

    def _stage(self, ids: list[UUID], place: StagingPlace) -> tuple[StagedWrite, ...]:
        context, events = self.context, self.events
        kept = events.first_kept(datetime.now(UTC))
        reading = EventReading(
            conninfo=place.conninfo,
            raw=events.raw,
            model=events.model,
            limits=events.limits,
            kept_from=datetime(kept.year, kept.month, 1, tzinfo=UTC) if kept else None,
        )
        if len(ids) < events.settings.spark_from and not context.spark.started:
            return stage_here(reading, place, split(ids, 1))
        spark = context.spark.get()
        count = max(1, min(context.spark.parallelism(), len(ids) // _SHARE_EVENTS))
        return stage_events(spark, reading, place, split(ids, count))

    def _place(self) -> StagingPlace:
        return StagingPlace(
            conninfo=self.context.databases.portable_conninfo(self.events.connection),
            schema=self.events.ledger_schema,
            control_id=self.context.control_id(),
            attempt_id=self.attempt_id,
            columns=EventStatements(self.events.model).staged_columns,
        )

    def _provide(self, end: BatchEnd) -> None:
        """Have the months made that a batch lacked; its events are then claimed again."""
        if not end.missing_months:
            return
        again = self._provisioned.intersection(end.missing_months)
        if again:
            months = ", ".join(f"{month:%Y-%m}" for month in sorted(again))
            raise DestinationError(
                f"{self.events.model.facts} still has no partition for {months}",
                "see what detaches it; its events stay pending",
            )
        self.provision(end.missing_months)
        self._provisioned.update(end.missing_months)

    def _discard(self) -> None:
        with self._lease() as connection:
            Staging(self.context.ledger(self.events.connection)).discard(
                connection, self.context.control_id(), self.attempt_id
            )

    def _finish(self) -> int:
        """Forget old batches, and count what waits."""
        events = self.events
        try:
            with self._lease() as connection:
                connection.execute(
                    statement(
                        "events/processing",
                        "prune_batches",
                        schema=sql.Identifier(events.ledger_schema),
                    )
                )
                row = connection.execute(
                    statement("events/processing", "count_pending", raw=qualified(events.raw))
                ).fetchone()
        except psycopg.Error as error:
            raise translate(error, f"counting events of {events.raw}") from error
        return int(row[0]) if row else 0

    def _lease(self) -> AbstractContextManager[Connection]:
        return self.context.databases.lease(self.events.connection)
