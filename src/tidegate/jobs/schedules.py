"""Schedules, ticks, pausing, and disabling after failures."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.config import Settings
from tidegate.config.sync import Group, Sync
from tidegate.config.task import Task
from tidegate.core.cron import CatchUp, Schedule
from tidegate.core.errors import DeclarationError, UsageError
from tidegate.jobs.context import JobContext, control_session
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import SYNC, TASK, JobStatus
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One declaration with a schedule."""

    name: str
    kind: str
    schedule: Schedule
    catch_up: CatchUp = CatchUp.LAST
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """what the declaration gives each of its runs, besides the tick"""
    disable_after: int | None = None
    """how many failures are too many; None for what the settings say"""


class TickOutcome(StrEnum):
    """What became of a tick."""

    QUEUED = "queued"
    COALESCED = "coalesced"
    """the last run has not ended yet"""
    COMPLETE = "complete"
    """there was nothing to do"""
    DISABLED = "disabled"
    """it had failed too often of late"""
    FAILED = "failed"
    """it could not be queued, and could not be later either"""


@dataclass(frozen=True, slots=True)
class DisabledState:
    """Since when and until when something is not queued, and by whom."""

    since: datetime
    until: datetime
    by: str
    failures: int


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """One schedule as it stands."""

    name: str
    kind: str
    cron: str
    timezone: str
    catch_up: CatchUp
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    seen_until: datetime
    tick: datetime | None
    outcome: TickOutcome | None
    job_id: UUID | None
    job_status: JobStatus | None
    disabled_until: datetime | None
    disabled_by: str | None

    @property
    def next_tick(self) -> datetime | None:
        """When it is due next; None while it is paused."""
        if self.paused_at is not None:
            return None
        return Schedule(self.cron, self.timezone).next_after(self.seen_until)


@dataclass(frozen=True, slots=True)
class Schedules:
    """The schedules of one project."""

    plane: ControlDatabase
    project: str

    def clock(self, connection: Connection) -> datetime:
        """The moment by the database's clock, which all schedulers go by."""
        row = connection.execute(self.plane.statement("jobs/schedules", "clock"), {}).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def declare(self, connection: Connection, declared: Iterable[Scheduled], now: datetime) -> None:
        """Write down what is declared now; a schedule that is new or changed begins at `now`."""
        # In one order, so that two who do so at once wait for each other and no more.
        wanted = sorted(declared, key=lambda one: one.name)
        with connection.transaction():
            connection.execute(
                self.plane.statement("jobs/schedules", "remove_schedules"),
                {"project": self.project, "names": [one.name for one in wanted]},
            )
            for one in wanted:
                connection.execute(
                    self.plane.statement("jobs/schedules", "declare_schedule"),
                    {
                        "project": self.project,
                        "name": one.name,
                        "kind": one.kind,
                        "cron": one.schedule.cron,
                        "timezone": one.schedule.timezone,
                        "catch_up": one.catch_up.value,
                        "parameters": Jsonb(dict(one.parameters)),
                        "now": now,
                    },
                )

    def list(self, connection: Connection) -> list[ScheduleLine]:
        """Every schedule, in the order of the names."""
        rows = connection.execute(
            self.plane.statement("jobs/schedules", "list_schedules"), {"project": self.project}
        )
        return [_line(list(row)) for row in rows]

    def seen_until(self, connection: Connection) -> dict[str, datetime]:
        """Up to when each was seen to, unless it is paused."""
        rows = connection.execute(
            self.plane.statement("jobs/schedules", "seen_until"), {"project": self.project}
        )
        return {row[0]: row[1] for row in rows}

    def lock(self, connection: Connection, name: str, seen_until: datetime) -> bool:
        """Be the one who sees to its ticks after this moment; False when another is or was."""
        row = connection.execute(
            self.plane.statement("jobs/schedules", "lock_schedule"),
            {"project": self.project, "name": name, "seen_until": seen_until},
        ).fetchone()
        return row is not None

    def move(self, connection: Connection, name: str, until: datetime) -> None:
        """Everything up to this moment was seen to."""
        connection.execute(
            self.plane.statement("jobs/schedules", "move_seen"),
            {"project": self.project, "name": name, "until": until},
        )

    def has_tick(self, connection: Connection, name: str, tick: datetime) -> bool:
        row = connection.execute(
            self.plane.statement("jobs/schedules", "has_tick"),
            {"project": self.project, "name": name, "tick": tick},
        ).fetchone()
        return bool(row and row[0])

    def note(
        self,
        connection: Connection,
        name: str,
        tick: datetime,
        outcome: TickOutcome,
        *,
        actor: str,
        job_id: UUID | None = None,
        detail: str | None = None,
    ) -> bool:
        """What became of a tick; False when that was noted before."""
        row = connection.execute(
            self.plane.statement("jobs/schedules", "note_tick"),
            {
                "project": self.project,
                "name": name,
                "tick": tick,
                "job_id": job_id,
                "outcome": outcome.value,
                "detail": detail,
                "actor": actor,
            },
        ).fetchone()
        return row is not None

    def pause(
        self, connection: Connection, name: str, actor: str, reason: str | None = None
    ) -> bool:
        """Queue nothing for it; False when it is paused already, or there is none."""
        row = connection.execute(
            self.plane.statement("jobs/schedules", "pause_schedule"),
            {"project": self.project, "name": name, "actor": actor, "reason": reason},
        ).fetchone()
        return row is not None

    def resume(self, connection: Connection, name: str) -> bool:
        """Queue for it again; False when it was not paused."""
        row = connection.execute(
            self.plane.statement("jobs/schedules", "resume_schedule"),
            {"project": self.project, "name": name},
        ).fetchone()
        return row is not None

    def prune(self, connection: Connection, older_than_seconds: float) -> int:
        """Forget ticks of long ago, of all projects; the newest of each schedule stays."""
        return connection.execute(
            self.plane.statement("jobs/schedules", "prune_ticks"),
            {"older_than": older_than_seconds},
        ).rowcount


def _line(values: list[Any]) -> ScheduleLine:
    values[4] = CatchUp(values[4])
    values[10] = None if values[10] is None else TickOutcome(values[10])
    values[12] = None if values[12] is None else JobStatus(values[12])
    return ScheduleLine(*values)


ACTOR = "scheduler"


@dataclass(frozen=True, slots=True)
class DisableRule:
    """So many failures within a window are too many, and what follows lasts for a while."""

    after: int
    window_seconds: float
    for_seconds: float


@dataclass(frozen=True, slots=True)
class TaskStates:
    """The states of a project's syncs and tasks; without a digest a name stands for all of it."""

    plane: ControlDatabase
    project: str

    def disabled(
        self, connection: Connection, name: str, now: datetime, *, digest: str = ""
    ) -> DisabledState | None:
        """Until when it is disabled; None when it is not."""
        row = connection.execute(
            self.plane.statement("jobs/task_states", "get_disabled"),
            {"project": self.project, "name": name, "digest": digest, "now": now},
        ).fetchone()
        return None if row is None else DisabledState(*row)

    def judge(
        self,
        connection: Connection,
        name: str,
        kind: str,
        rule: DisableRule,
        now: datetime,
        *,
        digest: str = "",
        update_id: str | None = None,
    ) -> DisabledState | None:
        """Whether it is disabled now; too many failures of late disable it.

        With an `update_id`, those of this run of a task alone.
        """
        found = self.disabled(connection, name, now, digest=digest)
        if found is not None:
            return found
        named = {"project": self.project, "name": name, "digest": digest, "now": now}
        rows = connection.execute(
            self.plane.statement("jobs/task_states", "list_failures"),
            named
            | {
                "kind": kind,
                "since": now - timedelta(seconds=rule.window_seconds),
                "update_id": update_id,
            },
        ).fetchall()
        if len(rows) < rule.after:
            return None
        failures = [row[0] for row in rows]
        until = now + timedelta(seconds=rule.for_seconds)
        connection.execute(
            self.plane.statement("jobs/task_states", "disable"),
            named | {"failures": failures, "until": until, "actor": ACTOR},
        )
        return DisabledState(now, until, ACTOR, len(failures))

    def enable(self, connection: Connection, name: str, actor: str) -> bool:
        """Let it be queued again, from a clean slate; False when it was not disabled."""
        rows = connection.execute(
            self.plane.statement("jobs/task_states", "enable"),
            {"project": self.project, "name": name, "actor": actor},
        ).fetchall()
        return bool(rows)


def scheduled_syncs(declared: Iterable[Sync | Group]) -> list[Scheduled]:
    """The syncs and groups that have a schedule."""
    found = []
    for one in declared:
        sync = one.template if isinstance(one, Group) else one
        if sync.schedule is None:
            continue
        found.append(
            Scheduled(
                name=sync.name,
                kind=SYNC,
                schedule=Schedule(sync.schedule, sync.timezone),
                catch_up=CatchUp(sync.catch_up),
                disable_after=sync.disable_after,
            )
        )
    return found


def scheduled_tasks(declared: Iterable[Task]) -> list[Scheduled]:
    """The tasks that have a schedule."""
    return [
        Scheduled(
            name=task.name,
            kind=TASK,
            schedule=Schedule(task.schedule, task.timezone),
            catch_up=CatchUp(task.catch_up),
            disable_after=task.disable_after,
        )
        for task in declared
        if task.schedule is not None
    ]


def known_resources(settings: Settings, what: str, names: Sequence[str]) -> tuple[str, ...]:
    """These names of resources; DeclarationError when [resources] does not have one of them."""
    for name in names:
        if name not in settings.resources:
            known = ", ".join(settings.resources)
            raise DeclarationError(
                f"{what}: resources names {name}, of which nobody has said how many there are",
                f"add {name} = 2, or the like, to [resources] in tidegate.toml"
                + (f"; there is {known}" if known else ""),
            )
    return tuple(names)


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """One declared schedule; without a line no scheduler has seen it yet."""

    declared: Scheduled
    line: ScheduleLine | None
    next_tick: datetime | None

    @property
    def state(self) -> str:
        """In one word, as a person would say it."""
        if self.line is None:
            return "new"
        if self.line.paused_at is not None:
            return "paused"
        return "active" if self.line.disabled_until is None else "DISABLED"


def read_schedules(context: JobContext, declared: Sequence[Scheduled]) -> list[ScheduleStatus]:
    """How each stands; changes nothing."""
    lines: dict[str, ScheduleLine] = {}
    now = datetime.now(UTC)
    with control_session(context) as control:
        if control is not None:
            schedules = _schedules(context)
            lines = {line.name: line for line in schedules.list(control)}
            now = schedules.clock(control)
    found = []
    for one in declared:
        line = lines.get(one.name)
        paused = line is not None and line.paused_at is not None
        found.append(ScheduleStatus(one, line, None if paused else one.schedule.next_after(now)))
    return found


def pause(
    context: JobContext, declared: Sequence[Scheduled], name: str, actor: str, reason: str | None
) -> bool:
    """Queue nothing for it; False when it was paused already."""
    _require(declared, name)
    context.control_id()
    with context.plane.connect() as control:
        schedules = _schedules(context)
        schedules.declare(control, declared, schedules.clock(control))
        return schedules.pause(control, name, actor, reason)


def resume(context: JobContext, declared: Sequence[Scheduled], name: str) -> bool:
    """Queue for it again; False when it was not paused."""
    _require(declared, name)
    with control_session(context) as control:
        return control is not None and _schedules(context).resume(control, name)


def enable(context: JobContext, name: str, actor: str) -> bool:
    """Queue again what failed too often; False when it was not disabled."""
    with control_session(context) as control:
        states = TaskStates(context.plane, context.settings.project.name)
        return control is not None and states.enable(control, name, actor)


def _schedules(context: JobContext) -> Schedules:
    return Schedules(context.plane, context.settings.project.name)


def _require(declared: Sequence[Scheduled], name: str) -> None:
    names = [one.name for one in declared]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        there = f"there is {', '.join(names)}" if names else "nothing has a schedule"
        raise UsageError(
            f"{name} has no schedule", f"did you mean {near[0]}?" if near else f"{there}"
        )
