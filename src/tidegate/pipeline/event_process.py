"""The second phase: raw events are claimed, read, and become facts, one commit for each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from uuid import UUID

import psycopg
from psycopg import sql

from tidegate.destinations.event_statements import EventStatements
from tidegate.errors import ConnectionFailed, DestinationError, StagingLost, TidegateError
from tidegate.failpoints import reach
from tidegate.ledger.staging import Staging
from tidegate.model.event_batch import BatchEnd, Processed
from tidegate.model.load import StagedWrite
from tidegate.pipeline.context import Context
from tidegate.pipeline.event_apply import EventApplication
from tidegate.pipeline.event_claim import EventClaim
from tidegate.pipeline.events import Events
from tidegate.postgres.connect import Connection, session_lost, translate
from tidegate.postgres.identifiers import qualified, statement
from tidegate.spark.copying import StagingPlace
from tidegate.spark.event_reading import EventReading, split, stage_events, stage_here

# Shares below this size cost more to hand out than they save.
_SHARE_EVENTS = 1_000
_LOSSES = 5
_APPLICATION = "tidegate process"


def process(
    context: Context,
    events: Events,
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
    events: Events
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
