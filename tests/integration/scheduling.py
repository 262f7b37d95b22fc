"""Schedulers over simulated time, with jobs that do nothing and that nobody works."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from integration.conftest import Place
from tidegate.control.schedules import Schedules
from tidegate.model.job import NOTHING, JobRequest, LockAt
from tidegate.model.schedule import CatchUp, Schedule
from tidegate.model.scheduled import Scheduled
from tidegate.postgres.connect import Connection
from tidegate.project import Project
from tidegate.runtime.scheduled_syncs import submit_all
from tidegate.runtime.scheduler import Enqueue, Enqueued, Scheduler, Scheduling


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


@dataclass
class Clockwork:
    """A project, a session, and schedulers whose time is what a test says."""

    place: Place
    project: Project
    control: Connection
    coalesce: bool = False
    """whether the runs of a schedule are one at a time, as those of a sync"""
    options: dict[str, Any] = field(default_factory=dict)

    def scheduler(self, *declared: Scheduled, actor: str = "test") -> Scheduler:
        return Scheduler(self.project.context, declared, {NOTHING: self.prepare}, actor=actor)

    def prepare(self, one: Scheduled, tick: datetime) -> Enqueue:
        request = JobRequest(
            project=self.project.name,
            kind=NOTHING,
            name=one.name,
            resource=None,
            payload={"tick": tick.isoformat()},
            lock_at=LockAt.NEVER,
        )
        request = replace(request, **self.options)
        if self.coalesce:
            request = replace(request, unique_key=one.name)

        def enqueue(control: Connection, actor: str) -> Enqueued:
            return submit_all(self.project.context, control, [request], actor)

        return enqueue

    def ticks(self, name: str = "nothing", outcome: str = "%") -> list[datetime]:
        """The ticks that were noted, in their order."""
        rows = self.control.execute(
            "SELECT tick FROM tidegate_control.schedule_ticks"
            " WHERE name = %s AND outcome LIKE %s ORDER BY tick",
            (name, outcome),
        )
        return [row[0].astimezone(UTC) for row in rows]

    def queued(self, name: str = "nothing") -> list[datetime]:
        """The ticks of the jobs there are, in their order, each as often as it is there."""
        rows = self.control.execute(
            "SELECT payload ->> 'tick' FROM tidegate_control.jobs WHERE name = %s ORDER BY 1",
            (name,),
        )
        return [datetime.fromisoformat(row[0]) for row in rows]

    def begin(self, now: datetime, *declared: Scheduled) -> None:
        """The schedules are first seen at this moment."""
        Schedules(self.project.context.plane, self.project.name).declare(
            self.control, declared, now
        )

    def simulate(
        self, nows: Sequence[datetime], declared: Sequence[Scheduled], schedulers: int
    ) -> list[Scheduling]:
        """All schedulers look at every one of these moments, side by side."""
        barrier = threading.Barrier(schedulers)
        done: list[Scheduling] = []
        errors: list[BaseException] = []

        def run(number: int) -> None:
            scheduler = self.scheduler(*declared, actor=f"scheduler {number}")
            try:
                with self.project.context.plane.connect() as control:
                    for now in nows:
                        barrier.wait(60)
                        done.append(scheduler.run_once(control, now))
            except BaseException as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=run, args=(n,)) for n in range(schedulers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        return done


@contextmanager
def open_clockwork(place: Place) -> Iterator[Clockwork]:
    project = place.open()
    project.context.control_id()
    with project.context.plane.connect() as control:
        yield Clockwork(place, project, control)
    project.close()
