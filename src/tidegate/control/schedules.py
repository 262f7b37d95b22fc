"""Schedules and their ticks: a tick is noted in the transaction that queues its job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.model.job import JobStatus
from tidegate.model.schedule import CatchUp, Schedule
from tidegate.model.scheduled import Scheduled, TickOutcome
from tidegate.postgres.connect import Connection


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

    plane: ControlPlane
    project: str

    def clock(self, connection: Connection) -> datetime:
        """The moment by the database's clock, which all schedulers go by."""
        row = connection.execute(self.plane.statement("schedules", "clock"), {}).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def declare(self, connection: Connection, declared: Iterable[Scheduled], now: datetime) -> None:
        """Write down what is declared now; a schedule that is new or changed begins at `now`."""
        # In one order, so that two who do so at once wait for each other and no more.
        wanted = sorted(declared, key=lambda one: one.name)
        with connection.transaction():
            connection.execute(
                self.plane.statement("schedules", "remove_schedules"),
                {"project": self.project, "names": [one.name for one in wanted]},
            )
            for one in wanted:
                connection.execute(
                    self.plane.statement("schedules", "declare_schedule"),
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
            self.plane.statement("schedules", "list_schedules"), {"project": self.project}
        )
        return [_line(list(row)) for row in rows]

    def seen_until(self, connection: Connection) -> dict[str, datetime]:
        """Up to when each was seen to, unless it is paused."""
        rows = connection.execute(
            self.plane.statement("schedules", "seen_until"), {"project": self.project}
        )
        return {row[0]: row[1] for row in rows}

    def lock(self, connection: Connection, name: str, seen_until: datetime) -> bool:
        """Be the one who sees to its ticks after this moment; False when another is or was."""
        row = connection.execute(
            self.plane.statement("schedules", "lock_schedule"),
            {"project": self.project, "name": name, "seen_until": seen_until},
        ).fetchone()
        return row is not None

    def move(self, connection: Connection, name: str, until: datetime) -> None:
        """Everything up to this moment was seen to."""
        connection.execute(
            self.plane.statement("schedules", "move_seen"),
            {"project": self.project, "name": name, "until": until},
        )

    def has_tick(self, connection: Connection, name: str, tick: datetime) -> bool:
        row = connection.execute(
            self.plane.statement("schedules", "has_tick"),
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
            self.plane.statement("schedules", "note_tick"),
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
            self.plane.statement("schedules", "pause_schedule"),
            {"project": self.project, "name": name, "actor": actor, "reason": reason},
        ).fetchone()
        return row is not None

    def resume(self, connection: Connection, name: str) -> bool:
        """Queue for it again; False when it was not paused."""
        row = connection.execute(
            self.plane.statement("schedules", "resume_schedule"),
            {"project": self.project, "name": name},
        ).fetchone()
        return row is not None

    def prune(self, connection: Connection, older_than_seconds: float) -> int:
        """Forget ticks of long ago, of all projects; the newest of each schedule stays."""
        return connection.execute(
            self.plane.statement("schedules", "prune_ticks"), {"older_than": older_than_seconds}
        ).rowcount


def _line(values: list[Any]) -> ScheduleLine:
    values[4] = CatchUp(values[4])
    values[10] = None if values[10] is None else TickOutcome(values[10])
    values[12] = None if values[12] is None else JobStatus(values[12])
    return ScheduleLine(*values)
