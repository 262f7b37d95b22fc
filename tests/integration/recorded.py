"""Attempts that are worked through for real, by work of the test's own and without any Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from integration.conftest import Place
from integration.job_store import control_session
from integration.queued import OfProject
from tidegate.core.relation import Endpoint
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import claim_table, open_heartbeat
from tidegate.jobs.history.query import History
from tidegate.jobs.history.record import TaskRecord

Work = Callable[[LiveAttempt], dict[str, Any]]


@dataclass(kw_only=True)
class Bench(OfProject):
    """A project whose jobs do what the test says."""

    def work(
        self, work: Work, name: str = "orders", *, retries: bool = False, **options: Any
    ) -> UUID:
        """One attempt at a job, from its claim to its end; what the work raises comes out."""
        context = self.project.context
        target = Endpoint.parse(f"warehouse:raw.{name}")
        destination = context.destination(target)
        with (
            context.plane.connect() as control,
            open_heartbeat(context, "tidegate run") as heartbeat,
        ):
            claimed = claim_table(
                context,
                control,
                destination,
                target,
                self.request(name, **options),
                heartbeat,
                actor="tester",
            )
            ClaimedWork(
                context=context,
                control=control,
                destination=destination,
                claimed=claimed,
                actor="tester",
                what=f"the work of {name}",
                interrupt=lambda: None,
                retries=retries,
            ).run(work)
            return claimed.claim.job_id

    def tasks(self) -> list[TaskRecord]:
        """All that is remembered, the oldest first, with tracebacks."""
        history = History(self.plane)
        found = list(self.project.history.find_all_runs())
        whole = [history.get(self.control, self.project.name, one.id) for one in found]
        return [one for one in reversed(whole) if one is not None]

    def events(self, task: TaskRecord) -> list[str]:
        return [one.event.value for one in self.project.history.find_all_events(task.id)]


@contextmanager
def open_bench(place: Place) -> Iterator[Bench]:
    place.target.execute("CREATE SCHEMA IF NOT EXISTS raw")
    with place.open() as project, control_session(project.context.plane) as parts:
        project.context.control_id()
        yield Bench(place=place, project=project, **parts)
