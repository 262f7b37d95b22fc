"""A project whose jobs are submitted, claimed and ended by hand, without any Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from integration.commands import Done
from integration.conftest import Place
from integration.here import tidegate
from integration.job_store import TABLES, Store, control_session
from integration.orders import CREATE, FILL
from tidegate.core.relation import Endpoint
from tidegate.jobs.claim import table_resource
from tidegate.jobs.job import SYNC, Claim, JobRequest, LockAt
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.postgres.connection import Connection
from tidegate.project import Project

CUSTOMERS = {
    "name": "customers",
    "source": "shop:public.customers",
    "target": "warehouse:raw.customers",
    "cursor": "updated_at",
}


@dataclass(kw_only=True)
class OfProject(Store):
    """The job store of a project; a job is for the table that is named like it."""

    place: Place
    project: Project

    @property
    def control(self) -> Connection:
        return self.session

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

    def run(self, *arguments: str) -> Done:
        """A command, in this process: a new one takes seconds."""
        return run_here(self.place, *arguments)


def run_here(place: Place, *arguments: str) -> Done:
    """A command on a project, in this process."""
    return tidegate(place.folder, *arguments)


@dataclass(kw_only=True)
class Desk(OfProject):
    """A project with a worker that does what the test says."""

    worker: WorkerIdentity
    own: Connection
    """the session of the worker"""

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    def load(self, claim: Claim, update_id: str, rows: int = 10) -> None:
        detail = {
            "update_id": update_id,
            "batch": "(1, 2]",
            "rows": rows,
            "changed": rows,
            "rejected": 0,
            "seconds": 0.5,
        }
        assert self.jobs.record_action(self.control, claim, "load", detail)

    def age(self, job_id: UUID, days: int) -> None:
        self.control.execute(
            "UPDATE jobs j SET submitted_at = submitted_at - age,"
            " started_at = started_at - age, finished_at = finished_at - age"
            " FROM (SELECT %(age)s::interval AS age) a WHERE j.job_id = %(job_id)s",
            {"age": f"{days} days", "job_id": job_id},
        )

    def counts(self) -> dict[str, int]:
        """How many rows there are of everything that a command could write."""
        return {table: self.value(f"SELECT count(*) FROM {table}") for table in TABLES}

    def lose_worker(self) -> None:
        """The worker's session ends, as when its process is killed."""
        self.own.execute("SELECT pg_advisory_unlock_all()")

    def clean(self) -> None:
        self.lose_worker()
        super().clean()
        Workers(self.plane).register(self.own, self.worker, "0")


@contextmanager
def open_desk(place: Place, kinds: tuple[str, ...] = (SYNC,)) -> Iterator[Desk]:
    place.source.execute(
        *CREATE,
        FILL,
        "CREATE TABLE customers (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL)",
    )
    with place.open() as project, control_session(project.context.plane) as parts:
        project.context.control_id()
        worker = WorkerIdentity.of_this_process(project.name, "tidegate worker", kinds, 4)
        with project.context.plane.connect() as own:
            Workers(project.context.plane).register(own, worker, "0")
            yield Desk(place=place, project=project, worker=worker, own=own, **parts)
