"""Schedulers over simulated time, with jobs that do nothing and that nobody works."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from integration.conftest import Place
from integration.job_store import control_session
from integration.queued import OfProject
from tidegate.core.cron import CatchUp, Schedule
from tidegate.jobs.job import NOTHING, JobRequest, LockAt
from tidegate.jobs.scheduler import Enqueue, Enqueued, Scheduler, ScheduleRound
from tidegate.jobs.schedules import Scheduled, Schedules, TaskStates
from tidegate.load.submit import submit_all
from tidegate.postgres.connection import Connection


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def scheduled(
    cron: str = "0 * * * *",
    zone: str = "UTC",
    catch_up: CatchUp = CatchUp.LAST,
    name: str = "nothing",
    **options: Any,
) -> Scheduled:
    return Scheduled(name, NOTHING, Schedule(cron, zone), catch_up, **options)


@dataclass(kw_only=True)
class Clockwork(OfProject):
    """A project and schedulers whose time is what a test says."""

    coalesce: bool = False
    """whether the runs of a schedule are one at a time, as those of a sync"""

    @property
    def states(self) -> TaskStates:
        return TaskStates(self.plane, self.project.name)

    def request(self, name: str = "nothing", **options: Any) -> JobRequest:
        values: dict[str, Any] = {"payload": {}, "lock_at": LockAt.NEVER, **options}
        return super().request(name, **({"kind": NOTHING, "resource": None} | values))

    def scheduler(self, *declared: Scheduled, actor: str = "test") -> Scheduler:
        return Scheduler(self.project.context, declared, {NOTHING: self.prepare}, actor=actor)

    def prepare(self, one: Scheduled, tick: datetime) -> Enqueue:
        request = self.request(one.name, payload={"tick": tick.isoformat()})
        if self.coalesce:
            request = replace(request, unique_key=one.name)

        def enqueue(control: Connection, actor: str) -> Enqueued:
            return submit_all(self.project.context, control, [request], actor)

        return enqueue

    def ticks(self, name: str = "nothing", outcome: str = "%") -> list[datetime]:
        """The ticks that were noted, in their order."""
        rows = self.execute(
            "SELECT tick FROM schedule_ticks WHERE name = %s AND outcome LIKE %s ORDER BY tick",
            name,
            outcome,
        )
        return [row[0].astimezone(UTC) for row in rows]

    def queued(self, name: str = "nothing") -> list[datetime]:
        """The ticks of the jobs there are, in their order, each as often as it is there."""
        rows = self.execute("SELECT payload ->> 'tick' FROM jobs WHERE name = %s ORDER BY 1", name)
        return [datetime.fromisoformat(row[0]) for row in rows]

    def begin(self, now: datetime, *declared: Scheduled) -> None:
        """The schedules are first seen at this moment."""
        Schedules(self.plane, self.project.name).declare(self.control, declared, now)

    def simulate(
        self, nows: Sequence[datetime], declared: Sequence[Scheduled], schedulers: int
    ) -> list[ScheduleRound]:
        """All schedulers look at every one of these moments, side by side."""
        barrier = threading.Barrier(schedulers)

        def run(control: Connection, number: int) -> list[ScheduleRound]:
            scheduler, done = self.scheduler(*declared, actor=f"scheduler {number}"), []
            try:
                for now in nows:
                    barrier.wait(60)
                    done.append(scheduler.run_once(control, now))
            except BaseException:
                barrier.abort()
                raise
            return done

        return [one for some in self.at_once(schedulers, run) for one in some]

    def clean(self) -> None:
        super().clean()
        self.coalesce = False


@contextmanager
def open_clockwork(place: Place) -> Iterator[Clockwork]:
    with place.open() as project, control_session(project.context.plane) as parts:
        project.context.control_id()
        yield Clockwork(place=place, project=project, **parts)
