"""How the events of a project stand, and another try for those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from tidegate.events.project_events import ProjectEvents, find_events
from tidegate.events.refresh import read_changes
from tidegate.events.tables import BATCHES
from tidegate.load.context import Context
from tidegate.load.sources.cdc.slot_registry import Open
from tidegate.postgres.connection import Connection, begin_read_only
from tidegate.postgres.queries import qualified, statement

COUNTED_AT_MOST = 1_000_000
_FAILURES = 100_000
_REASONS = 20
_CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why events failed; one of them is named."""

    error: str
    events: int
    last_at: datetime | None
    example: UUID


@dataclass(frozen=True, slots=True)
class Throughput:
    """What was committed in the last hour."""

    batches: int = 0
    done: int = 0
    failed: int = 0
    facts: int = 0
    busy_seconds: float = 0.0
    last_committed_at: datetime | None = None

    @property
    def per_second(self) -> float | None:
        """Events in a second of work; of several instances, in a second of each."""
        events = self.done + self.failed
        return events / self.busy_seconds if events and self.busy_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """One view, as its log has it."""

    view: str
    refreshed_at: datetime | None = None
    seconds: float | None = None
    rows: int | None = None
    is_current: bool = False
    """it shows every change that is committed"""
    failed_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EventStatus:
    """Backlog, lag, throughput, failures and views; counts end at COUNTED_AT_MOST."""

    connection: str
    raw: str
    facts: str
    is_provisioned: bool
    pending: int = 0
    oldest_pending_at: datetime | None = None
    lag_seconds: float | None = None
    """how long the event that has waited longest does"""
    failed: int = 0
    """of those received last"""
    reasons: list[FailureReason] = field(default_factory=list)
    last_hour: Throughput = field(default_factory=Throughput)
    partitions: int = 0
    first_partition: str | None = None
    last_partition: str | None = None
    facts_bytes: int = 0
    views: list[ViewStatus] = field(default_factory=list)


def read_event_status(context: Context, open_source: Open | None = None) -> EventStatus:
    """How the events stand, from one snapshot."""
    events = find_events(context)
    with (open_source or context.databases.connect)(events.connection) as connection:
        begin_read_only(connection)
        try:
            return _Reading(connection, events).read()
        finally:
            connection.execute("ROLLBACK")


def status_document(found: EventStatus) -> dict[str, Any]:
    """The status as JSON has it."""
    document = asdict(found)
    document["last_hour"]["per_second"] = found.last_hour.per_second
    return document


def count_failed(
    context: Context, *, ids: Sequence[UUID] | None = None, reason: str | None = None
) -> int:
    """How many events `retry_events` would let be tried again."""
    events = find_events(context)
    with context.databases.lease(events.connection) as connection:
        row = connection.execute(
            statement("events/status", "count_failed", raw=qualified(events.raw)),
            {"ids": None if ids is None else list(ids), "reason": reason},
        ).fetchone()
    return int(row[0]) if row else 0


def retry_events(
    context: Context, *, ids: Sequence[UUID] | None = None, reason: str | None = None
) -> int:
    """Let failed events wait again, all of them or some; each chunk is committed by itself."""
    events = find_events(context)
    retried = 0
    with context.databases.lease(events.connection) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        while True:
            chunk = connection.execute(
                statement("events/status", "retry_failed", raw=qualified(events.raw)),
                {
                    "ids": None if ids is None else list(ids),
                    "reason": reason,
                    "since": row[0],
                    "most": _CHUNK,
                },
            ).rowcount
            retried += chunk
            if not chunk:
                return retried


@dataclass(frozen=True, slots=True)
class _Reading:
    connection: Connection
    events: ProjectEvents

    def read(self) -> EventStatus:
        events = self.events
        log = events.refresh_log
        names = {
            "raw": str(qualified(events.raw).as_string(None)),
            "facts": str(qualified(events.model.facts).as_string(None)),
            "batches": sql.Identifier(events.ledger_schema, BATCHES).as_string(None),
            "log": None if log is None else qualified(log).as_string(None),
        }
        existing = self.connection.execute(
            statement("events/status", "read_existing"), names
        ).fetchone()
        assert existing is not None
        provisioned = all(existing[:3]) and (log is None or bool(existing[3]))
        status = EventStatus(
            connection=events.connection,
            raw=str(events.raw),
            facts=str(events.model.facts),
            is_provisioned=provisioned,
            views=[] if provisioned else [ViewStatus(str(one.name)) for one in events.model.views],
        )
        return self._fill(status, names["facts"]) if provisioned else status

    def _fill(self, status: EventStatus, facts: str | None) -> EventStatus:
        raw = qualified(self.events.raw)
        schema = sql.Identifier(self.events.ledger_schema)
        backlog = self._one(
            statement("events/status", "read_backlog", raw=raw), most=COUNTED_AT_MOST
        )
        failures = self.connection.execute(
            statement("events/status", "read_failures", raw=raw),
            {"most": _FAILURES, "reasons": _REASONS},
        ).fetchall()
        busy = self._one(statement("events/status", "read_throughput", schema=schema))
        parts = self._one(statement("events/status", "read_parts"), facts=facts)
        return EventStatus(
            connection=status.connection,
            raw=status.raw,
            facts=status.facts,
            is_provisioned=True,
            pending=backlog[0],
            oldest_pending_at=backlog[1],
            lag_seconds=backlog[2],
            failed=int(failures[0][4]) if failures else 0,
            reasons=[FailureReason(error or "", *rest) for error, *rest, _ in failures],
            last_hour=Throughput(
                int(busy[0]), int(busy[1]), int(busy[2]), int(busy[3]), busy[4], busy[5]
            ),
            partitions=parts[0],
            first_partition=parts[1],
            last_partition=parts[2],
            facts_bytes=int(parts[3]),
            views=self._views(),
        )

    def _views(self) -> list[ViewStatus]:
        log = self.events.refresh_log
        if log is None:
            return []
        names = [str(one.name) for one in self.events.model.views]
        changes = read_changes(self.connection, self.events)
        rows = self.connection.execute(
            statement("events/status", "read_log", log=qualified(log)), {"views": names}
        )
        found = {
            name: ViewStatus(name, at, seconds, count, seen == changes, failed_at, error)
            for name, at, seconds, count, seen, failed_at, error in rows
        }
        return [found.get(name, ViewStatus(name)) for name in names]

    def _one(self, text: sql.Composed, **parameters: object) -> tuple[Any, ...]:
        (row,) = self.connection.execute(text, parameters).fetchall()
        return tuple(row)
