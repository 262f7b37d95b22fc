"""How all syncs stand."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import sql

from tidegate.admin.vacuum_horizon import VacuumHorizon, read_vacuum_horizon
from tidegate.config.sync import Group, Sync
from tidegate.core.batch import Lateness
from tidegate.core.errors import ConnectionFailed, TidegateError
from tidegate.core.watermark import CursorType, Horizon, Watermark, lsn_value
from tidegate.jobs.context import has_jobs
from tidegate.jobs.job import SYNC, JobStatus
from tidegate.jobs.job_records import JobRecords, RecentJob
from tidegate.jobs.job_view import QueueStatus, read_queue
from tidegate.ledger.watermarks import Watermarks
from tidegate.load.context import Context
from tidegate.load.declaration_changes import horizon_remarks, refuse_changed_declaration
from tidegate.load.inspection import ReadMemory, ReadSessions, read_lock
from tidegate.load.plan import Lock
from tidegate.load.sources.cdc.publication import ChangeLog
from tidegate.load.sources.cdc.slot_lifecycle import SlotLifecycle
from tidegate.load.sources.cdc.slot_registry import SlotStatus, read_slots
from tidegate.load.sources.horizon import read_horizon
from tidegate.load.sources.iceberg_table import refuse_changed_lake, resolve_lake_source
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.resolve import resolve_source
from tidegate.load.sources.watermark_conditions import check_standing, pending_condition, rows_ahead
from tidegate.maintenance.table_report import UnhealthyTable, find_unhealthy
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Connection, translate

# Counting stops here; "more than" is all that anybody wants to know beyond it.
LAG_ROWS_LIMIT = 1_000_000


class SyncState(StrEnum):
    """How the latest run of a sync ended, or where it is."""

    NEVER_RAN = "never ran"
    FOUND_NOTHING = "ran, found nothing"
    DONE = "done"
    ADOPTED = "adopted"
    FAILED = "failed"
    RUNNING = "running"
    PENDING = "pending"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why rows wait: where reading stops, and the session that keeps it there."""

    at: str | None
    by: str
    since: datetime | None
    seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the target is behind; `rows` only where an index makes them cheap to count."""

    rows: int | None
    rows_are_capped: bool
    seconds: float | None
    bytes: int | None = None
    """of the source's log, whatever it is about, where changes are read from it"""


@dataclass(frozen=True, slots=True)
class SyncStatus:
    """One sync as it stands; `unreachable` names what could not be asked."""

    sync: str
    source: str
    target: str
    state: SyncState
    last_run_at: datetime | None
    rows: int | None
    error: str | None
    watermark: str | None
    generation: int
    rows_synced: int
    lag: Lag | None
    held_back: HeldBack | None
    lock: Lock | None
    unreachable: tuple[str, ...]
    problem: str | None
    mode: str = "merge"
    version: int = 0
    late: Lateness | None = None
    """rows that lookbacks of the last loads still found"""
    lookback: str | None = None
    notes: tuple[str, ...] = ()
    """what to know of the source"""

    @property
    def is_well(self) -> bool:
        return self.state is not SyncState.FAILED and not self.unreachable and self.problem is None


@dataclass(frozen=True, slots=True)
class ProjectStatus:
    """The syncs of a project, its queue, and what holds back vacuum in its control database."""

    project: str
    syncs: tuple[SyncStatus, ...]
    vacuum_horizon: VacuumHorizon
    control_unreachable: str | None
    queue: QueueStatus = field(default_factory=QueueStatus)
    unwell_tables: tuple[UnhealthyTable, ...] = ()
    """those of lakes, as the table cache has them"""
    slots: tuple[SlotStatus, ...] = ()
    """from which changes are read"""

    @property
    def is_well(self) -> bool:
        return (
            self.control_unreachable is None
            and all(sync.is_well for sync in self.syncs)
            and all(slot.is_well for slot in self.slots)
        )


def read_status(context: Context, syncs: Iterable[Sync]) -> ProjectStatus:
    """Look at every given sync; what cannot be reached is said, not raised."""
    with ReadSessions(context) as sessions:
        jobs: dict[str, RecentJob] | None = None
        horizon, queue, unreachable = VacuumHorizon(), QueueStatus(), None
        unwell: tuple[UnhealthyTable, ...] = ()
        slots: list[SlotStatus] = []
        try:
            control = sessions.control()
            project = context.settings.project.name
            jobs = (
                {} if control is None else JobRecords(context.plane).recent(control, project, SYNC)
            )
            horizon = read_vacuum_horizon(
                sessions.control_database(),
                context.plane,
                context.settings.worker.horizon_warning_seconds,
            )
            if control is not None and has_jobs(context.plane, control):
                queue = read_queue(context.plane, control, project)
                unwell = find_unhealthy(context, control)
                slots = read_slots(
                    context, control, lambda name: nullcontext(sessions.source(name))
                )
        except (TidegateError, psycopg.Error) as error:
            unreachable = _words(error)
        found = tuple(_Look(sessions, sync, jobs).status() for sync in syncs)
    return ProjectStatus(
        context.settings.project.name, found, horizon, unreachable, queue, unwell, tuple(slots)
    )


@dataclass(slots=True)
class _Look:
    sessions: ReadSessions
    sync: Sync
    jobs: dict[str, RecentJob] | None

    def status(self) -> SyncStatus:
        unreachable: list[str] = []
        problem: str | None = None
        watermark: Watermark | None = None
        lock: Lock | None = None
        lag: Lag | None = None
        notes: list[str] = []
        job = None if self.jobs is None else self.jobs.get(self.sync.name)
        held = _held_at_last_run(job)
        try:
            watermark = self._watermark()
            if self.jobs is not None:
                lock = read_lock(self.sessions, self.sync)
        except (TidegateError, psycopg.Error) as error:
            unreachable, problem = _sort(error, unreachable, problem)
        try:
            lag, held = self._look_at_source(watermark, notes)
        except (TidegateError, psycopg.Error) as error:
            unreachable, problem = _sort(error, unreachable, problem)
        result: dict[str, Any] = (job.result or {}) if job else {}
        return SyncStatus(
            sync=self.sync.name,
            source=self.sync.source_name,
            target=str(self.sync.target),
            state=self._state(job, watermark, lock),
            last_run_at=(job.finished_at or job.submitted_at) if job else None,
            rows=result.get("rows"),
            error=job.error if job else None,
            watermark=watermark.value if watermark else result.get("watermark"),
            generation=watermark.generation if watermark else 0,
            rows_synced=watermark.rows_synced if watermark else 0,
            lag=lag,
            held_back=held,
            lock=lock,
            unreachable=tuple(dict.fromkeys(unreachable)),
            problem=problem,
            mode=self.sync.mode.value,
            version=watermark.version if watermark else 0,
            late=_lateness(watermark),
            lookback=None if self.sync.lookback is None else str(self.sync.lookback),
            notes=tuple(notes),
        )

    def _watermark(self) -> Watermark:
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        target = self.sessions.target(self.sync.target.connection)
        return Watermarks(ledger).get(target, self.sync.pipeline, str(self.sync.target.relation))

    def _state(
        self, job: RecentJob | None, watermark: Watermark | None, lock: Lock | None
    ) -> SyncState:
        if self.jobs is None:
            return SyncState.UNKNOWN
        if job is None:
            loaded = watermark is not None and watermark.version > 0
            return SyncState.UNKNOWN if loaded else SyncState.NEVER_RAN
        result = (job.result or {}) if job.status is JobStatus.DONE else {}
        if result.get("found_nothing"):
            return SyncState.FOUND_NOTHING
        if result.get("adopted"):
            return SyncState.ADOPTED
        if job.status is JobStatus.RUNNING and lock is not None and lock.free:
            return SyncState.INTERRUPTED
        return SyncState(job.status.value)

    def _look_at_source(
        self, watermark: Watermark | None, notes: list[str]
    ) -> tuple[Lag | None, HeldBack | None]:
        if self.sessions.context.is_lake(self.sync.source.connection):
            return self._look_at_lake(watermark), None
        connection = self.sessions.source(self.sync.source.connection)
        source = resolve_source(connection, self.sync)
        plane = self.sessions.context.plane
        control = None if self.jobs is None else self.sessions.control()
        if self.sync.changes == "cdc":
            return self._look_at_changes(connection, source, watermark, control), None
        memory = ReadMemory(plane, control, self.sync.pipeline)
        horizon = read_horizon(connection, source.cursor, memory, may_wait=False)
        if horizon.lag_seconds is not None and horizon.lag_seconds >= 1:
            notes.append(f"its source is a standby, {horizon.lag_seconds:.0f} s behind its primary")
        notes += rows_ahead(connection, source)
        lag = None
        if watermark is not None:
            refuse_changed_declaration(watermark, source, self.sync)
            notes += check_standing(self.sessions.context, connection, source, watermark, self.sync)
            notes += horizon_remarks(connection, source.cursor, watermark, horizon)
            lag = _lag(connection, source, watermark)
        return lag, _held_now(connection, source, watermark, horizon)

    def _look_at_changes(
        self,
        connection: Connection,
        source: PostgresSource,
        watermark: Watermark | None,
        control: Connection | None,
    ) -> Lag | None:
        if watermark is None or watermark.value is None or control is None:
            return None
        context = self.sessions.context
        log = ChangeLog.of(self.sync, source, connection, context.plane.identity(control))
        changes = SlotLifecycle(context, self.sync, source, log)
        changes.refuse_changed(watermark)
        if watermark.is_refreshing:
            return None
        changes.refuse_unlogged(watermark)
        server = read_server(connection)
        behind = max(0, lsn_value(server.lsn) - lsn_value(watermark.value))
        readers = changes.slots.read_by(control, self.sync.pipeline)
        read_at = next((one.read_at for one in readers if one.slot == log.slot.name), None)
        row = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp() - %s::timestamptz)::float8", (read_at,)
        ).fetchone()
        return Lag(None, False, row[0] if row else None, behind)

    def _look_at_lake(self, watermark: Watermark | None) -> Lag | None:
        source = resolve_lake_source(self.sessions.context, self.sync)
        if watermark is None:
            return None
        refuse_changed_lake(watermark, source, self.sync)
        return Lag(source.waiting_rows(source.table, watermark.value), False, None)


def _lateness(watermark: Watermark | None) -> Lateness | None:
    if watermark is None:
        return None
    kind = None if watermark.cursor_type is None else CursorType.of(watermark.cursor_type)
    in_seconds = kind is not None and not kind.is_number
    return Lateness.recorded(watermark.declaration, in_seconds=in_seconds)


def _lag(connection: Connection, source: PostgresSource, watermark: Watermark) -> Lag:
    rows: int | None = None
    capped = False
    if source.reads_by_index:
        row = connection.execute(
            sql.SQL("SELECT count(*) FROM (SELECT FROM {} WHERE {} LIMIT {}) s").format(
                source.relation,
                pending_condition(source, watermark, nulls=True),
                sql.Literal(LAG_ROWS_LIMIT + 1),
            )
        ).fetchone()
        assert row is not None
        capped = row[0] > LAG_ROWS_LIMIT
        rows = min(row[0], LAG_ROWS_LIMIT)
    return Lag(rows, capped, _seconds_behind(connection, source, watermark))


def _seconds_behind(
    connection: Connection, source: PostgresSource, watermark: Watermark
) -> float | None:
    """How far the watermark lies behind the source's clock."""
    if watermark.value is None or source.cursor is None or source.cursor.type.is_number:
        return None
    moment: sql.Composable = source.value(watermark.value)
    if source.cursor.type is not CursorType.TIMESTAMPTZ:
        zone = sql.SQL("(SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')")
        given = source.cursor.timezone
        moment = sql.SQL("({}::timestamp AT TIME ZONE {})").format(
            moment, sql.Literal(given) if given else zone
        )
    row = connection.execute(
        sql.SQL("SELECT greatest(0, extract(epoch FROM clock_timestamp() - {}))::float8").format(
            moment
        )
    ).fetchone()
    return row[0] if row else None


def _held_now(
    connection: Connection, source: PostgresSource, watermark: Watermark | None, horizon: Horizon
) -> HeldBack | None:
    """An open transaction holds a sync back when rows lie above the point that it marks."""
    if horizon.held_by is None:
        return None
    if source.reads_by_index:
        low = horizon.high
        if low is None and watermark is not None:
            low = watermark.value
        position = Watermark("", "", low)
        row = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
                source.relation, pending_condition(source, position, nulls=True)
            )
        ).fetchone()
        if not (row and row[0]):
            return None
    return HeldBack(horizon.high, horizon.held_by.what, horizon.held_by.since, horizon.measured_at)


def _held_at_last_run(job: RecentJob | None) -> HeldBack | None:
    """What the last run wrote down, for when the source cannot be asked."""
    horizon = ((job.result or {}) if job else {}).get("horizon") or {}
    held = horizon.get("held_by")
    if not held:
        return None
    return HeldBack(
        horizon.get("high"),
        held["what"],
        _moment(held.get("since")),
        _moment(horizon.get("measured_at")),
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _sort(
    error: Exception, unreachable: list[str], problem: str | None
) -> tuple[list[str], str | None]:
    """A database that does not answer is one thing, a declaration that is wrong another."""
    if isinstance(error, psycopg.Error):
        error = translate(error, "reading its state")
    if isinstance(error, ConnectionFailed):
        return [*unreachable, error.message], problem
    return unreachable, problem or _words(error)


def _words(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        error = translate(error, "reading the control database")
    if isinstance(error, TidegateError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return str(error)


@dataclass(frozen=True, slots=True)
class SyncLine:
    """One sync, and how its latest job went; a group stands for its tables."""

    sync: str
    source: str
    target: str
    mode: str
    is_group: bool
    state: SyncState
    job_id: str | None
    last_run_at: datetime | None
    rows: int | None
    error: str | None
    watermark: str | None
    late_rows: int = 0
    """that the latest run found below the watermark"""
    late_farthest: float = 0.0
    """behind it, in seconds or in steps of an integer cursor"""


def list_syncs(
    context: Context, control: Connection, declared: Iterable[Sync | Group]
) -> list[SyncLine]:
    """What is declared, in order, and after each group those of its tables that ever ran."""
    jobs = JobRecords(context.plane).recent(control, context.settings.project.name, SYNC)
    found: list[SyncLine] = []
    for one in declared:
        if isinstance(one, Sync):
            found.append(_line(one, one.name, jobs.get(one.name)))
            continue
        found.append(_line(one, one.name, None))
        begins = f"{one.name}."
        ran = sorted(name for name in jobs if name.startswith(begins))
        found += [_line(one, name, jobs[name]) for name in ran]
    return found


def _line(one: Sync | Group, name: str, job: RecentJob | None) -> SyncLine:
    is_group = isinstance(one, Group) and name == one.name
    result = (job.result or {}) if job else {}
    return SyncLine(
        sync=name,
        source=one.source_name if isinstance(one, Sync) else str(one.source),
        target=str(one.target),
        mode=(one if isinstance(one, Sync) else one.template).mode.value,
        is_group=is_group,
        state=_state(job),
        job_id=None if job is None else str(job.job_id),
        last_run_at=(job.finished_at or job.submitted_at) if job else None,
        rows=result.get("rows"),
        error=job.error if job else None,
        watermark=result.get("watermark"),
        late_rows=int((result.get("late") or {}).get("rows", 0)),
        late_farthest=float((result.get("late") or {}).get("farthest", 0.0)),
    )


def _state(job: RecentJob | None) -> SyncState:
    if job is None:
        return SyncState.NEVER_RAN
    result = (job.result or {}) if job.status is JobStatus.DONE else {}
    if result.get("found_nothing"):
        return SyncState.FOUND_NOTHING
    return SyncState.ADOPTED if result.get("adopted") else SyncState(job.status.value)
