"""Attempts that are worked through for real, by work of the test's own and without any Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from integration.conftest import Place
from tidegate.control.history import History
from tidegate.control.jobs import Jobs
from tidegate.model.job import SYNC, JobRequest, LockAt
from tidegate.model.relation import Endpoint
from tidegate.model.task_history import TaskRecord
from tidegate.project import Project
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.claiming import claim_table, open_heartbeat, table_resource
from tidegate.runtime.working import ClaimedWork

Work = Callable[[LiveAttempt], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A project whose jobs do what the test says."""

    place: Place
    project: Project

    def request(self, name: str = "orders", **options: Any) -> JobRequest:
        target = Endpoint.parse(f"warehouse:raw.{name}")
        values: dict[str, Any] = {
            "project": self.project.name,
            "kind": SYNC,
            "name": name,
            "resource": table_resource(self.project.context, target),
            "payload": {"target": str(target), "full_refresh": False},
            "lock_at": LockAt.CLAIM,
            **options,
        }
        return JobRequest(**values)

    def submit(self, request: JobRequest) -> None:
        plane = self.project.context.plane
        with plane.connect() as control:
            Jobs(plane).submit(control, request, "tester")

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
        found = list(self.project.history.find_all_runs())
        with self.project.context.plane.connect() as control:
            history = History(self.project.context.plane)
            whole = [history.get(control, self.project.name, one.id) for one in found]
        return [one for one in reversed(whole) if one is not None]

    def events(self, task: TaskRecord) -> list[str]:
        return [one.event.value for one in self.project.history.find_all_events(task.id)]

    def status(self, job_id: UUID) -> str:
        return str(
            self.place.control.value(
                f"SELECT status FROM tidegate_control.jobs WHERE job_id = '{job_id}'"
            )
        )

    def count(self, table: str) -> int:
        return int(self.place.control.value(f"SELECT count(*) FROM tidegate_control.{table}"))


@contextmanager
def open_bench(place: Place) -> Iterator[Bench]:
    place.target.execute("CREATE SCHEMA IF NOT EXISTS raw")
    with place.open() as project:
        project.context.control_id()
        yield Bench(place, project)
