"""Read-only sessions, bounded counts, who holds a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

from psycopg import errors as pg

from tidegate.config.sync import Sync
from tidegate.core.errors import ControlMismatch, TidegateError, UsageError
from tidegate.core.identity import resource_name
from tidegate.iceberg.table import lake_resource
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import JobStatus
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.ledger.fences import Fence, Fences
from tidegate.load.context import Context
from tidegate.load.plan import Lock
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import CONTROL


@dataclass(frozen=True, slots=True)
class Observations:
    """Remembers what was seen, for one pipeline, on a control session."""

    plane: ControlDatabase
    connection: Connection
    pipeline: str

    def record(self, observed_at: datetime, value: str) -> None:
        self.connection.execute(
            self.plane.statement("load/cursor_observations", "record_observation"),
            {"pipeline": self.pipeline, "observed_at": observed_at, "value": value},
        )
        self.connection.execute(
            self.plane.statement("load/cursor_observations", "prune_observations"),
            {"pipeline": self.pipeline},
        )

    def latest_before(self, moment: datetime) -> str | None:
        """The highest value known to have been visible before `moment`."""
        row = self.connection.execute(
            self.plane.statement("load/cursor_observations", "latest_before"),
            {"pipeline": self.pipeline, "moment": moment},
        ).fetchone()
        return row[0] if row else None

    def forget(self) -> None:
        self.connection.execute(
            self.plane.statement("load/cursor_observations", "forget_observations"),
            {"pipeline": self.pipeline},
        )


@dataclass(slots=True)
class ReadSessions:
    """One session per role and connection; a database that did not answer is not asked again."""

    context: Context
    _open: dict[tuple[str, str], Connection | TidegateError] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _has_plane: bool | None = None

    def source(self, name: str) -> Connection:
        """A session of its own for reading, since a snapshot is held in it."""
        if self.context.is_lake(name):
            raise UsageError(
                f'connection "{name}" is a lake, which this command cannot read as a source; nor '
                "can a group have a lake as its source",
                "declare each of its tables as a sync of its own; run, plan and status can read it",
            )
        return self._get("source", name)

    def target(self, name: str) -> Connection:
        return self._get("target", name)

    def control(self) -> Connection | None:
        """The control database; None when nothing ever ran, so that nothing is made there."""
        connection = self._get("control", CONTROL)
        if self._has_plane is None:
            self._has_plane = self.context.plane.version(connection) > 0
        return connection if self._has_plane else None

    def control_database(self) -> Connection:
        """The control database, whether or not it holds a control plane yet."""
        return self._get("control", CONTROL)

    def memory(self, pipeline: str) -> ReadMemory:
        return ReadMemory(self.context.plane, self.control(), pipeline)

    def _get(self, role: str, name: str) -> Connection:
        known = self._open.get((role, name))
        if known is None:
            try:
                known = self._stack.enter_context(
                    self.context.databases.connect_source(name, "tidegate inspect")
                    if role == "source"
                    else self.context.databases.connect(name, "tidegate inspect")
                )
            except TidegateError as error:
                known = error
            self._open[role, name] = known
        if isinstance(known, TidegateError):
            raise known
        return known

    def __enter__(self) -> ReadSessions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


@dataclass(frozen=True, slots=True)
class AttemptMemory:
    """What runs have seen of an integer cursor, over the session of the attempt at work."""

    plane: ControlDatabase
    ask: Callable[[Callable[[Connection], Any]], Any]
    pipeline: str

    def record(self, observed_at: datetime, value: str) -> None:
        self.ask(lambda control: self._on(control).record(observed_at, value))

    def latest_before(self, moment: datetime) -> str | None:
        found: str | None = self.ask(lambda control: self._on(control).latest_before(moment))
        return found

    def forget(self) -> None:
        self.ask(lambda control: self._on(control).forget())

    def _on(self, control: Connection) -> Observations:
        return Observations(self.plane, control, self.pipeline)


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """What earlier runs observed of an integer cursor, without adding to it."""

    plane: ControlDatabase
    connection: Connection | None
    pipeline: str

    def record(self, observed_at: datetime, value: str) -> None:
        """A command that only looks leaves no trace."""

    def latest_before(self, moment: datetime) -> str | None:
        if self.connection is None:
            return None
        return Observations(self.plane, self.connection, self.pipeline).latest_before(moment)


def read_lock(sessions: ReadSessions, sync: Sync) -> Lock:
    """The lock as it stands now."""
    resource = _resource(sessions, sync)
    control = sessions.control()
    if control is None:
        return Lock(resource, free=True)
    jobs = Jobs(sessions.context.plane)
    holder = jobs.holder(control, resource)
    if holder is None:
        return Lock(resource, free=True)
    if holder.status is JobStatus.PENDING:
        note = "nobody works on it; the next run takes it up"
        return Lock(resource, free=True, holder=str(holder), note=note)
    attempts = LostAttempts(sessions.context.plane).list(control, resource=resource)
    dead = {attempt.attempt_id for attempt in attempts}
    if holder.attempt_id in dead:
        note = "its process is gone; the next run takes over"
        return Lock(resource, free=True, holder=str(holder), note=note)
    return Lock(resource, free=False, holder=str(holder))


def refuse_other_plane(sessions: ReadSessions, sync: Sync) -> None:
    """Refuse a table that another control plane loads, as raising the fence would."""
    fence = _fence(sessions, sync)
    if fence is None:
        return
    control = sessions.control()
    ours = None if control is None else sessions.context.plane.identity(control)
    if fence.control_id != ours:
        raise ControlMismatch(
            f"{sync.target} is loaded by another control plane ({fence.control_id})",
            f"stop that one first, then hand the table over with: tidegate run {sync.name} "
            "--take-over",
        )


def _resource(sessions: ReadSessions, sync: Sync) -> str:
    """What a job would lock; told without a control plane, which the first job makes."""
    name, relation = sync.target.connection, sync.target.relation
    if sessions.context.is_lake(name):
        return lake_resource(sessions.context.catalog(name).identity, relation)
    return resource_name(database_identity(sessions.target(name)), relation)


def _fence(sessions: ReadSessions, sync: Sync) -> Fence | None:
    target = sessions.target(sync.target.connection)
    fences = Fences(sessions.context.ledger(sync.target.connection))
    try:
        return fences.current(target, str(sync.target.relation))
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return None
