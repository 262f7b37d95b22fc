"""A project whose jobs are submitted, claimed and ended by hand, without any Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from uuid import UUID

from integration.commands import Done
from integration.conftest import Place
from integration.orders import CREATE, FILL
from tidegate.cli.main import main
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.control.workers import Worker, Workers
from tidegate.model.job import SYNC, Claim, JobRequest, JobStatus, LockAt
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.project import Project
from tidegate.runtime.claiming import table_resource

CUSTOMERS = {
    "name": "customers",
    "source": "shop:public.customers",
    "target": "warehouse:raw.customers",
    "cursor": "updated_at",
}
TABLES = ("jobs", "job_queue", "job_attempts", "job_actions", "table_locks", "job_audit")


@dataclass(frozen=True, slots=True)
class Desk:
    """A project, its control database, and a worker that does what the test says."""

    place: Place
    project: Project
    control: Connection
    worker: Worker
    session: Connection

    @property
    def plane(self) -> ControlPlane:
        return self.project.context.plane

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.plane)

    def run(self, *arguments: str) -> Done:
        """A command, in this process: a new one takes seconds."""
        out, err = StringIO(), StringIO()
        before = sys.argv
        sys.argv = ["tidegate", *arguments, "--project", str(self.place.folder)]
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            sys.argv = before
        return Done(code, out.getvalue(), err.getvalue())

    def submit(self, name: str = "orders", **options: Any) -> UUID:
        """A job straight into the store, with a table named like it."""
        values: dict[str, Any] = {
            "project": self.project.name,
            "kind": SYNC,
            "name": name,
            "resource": table_resource(
                self.project.context, Endpoint.parse(f"warehouse:raw.{name}")
            ),
            "payload": {"target": f"warehouse:raw.{name}", "full_refresh": False},
            "lock_at": LockAt.CLAIM,
            **options,
        }
        found = self.jobs.submit(self.control, JobRequest(**values), "tester").job_id
        assert found is not None
        return found

    def claim(self, job_id: UUID, lease_seconds: float = 60) -> Claim:
        found = self.jobs.claim(
            self.control, self.worker.worker_id, job_id, lease_seconds=lease_seconds
        )
        assert found is not None
        return found

    def end(
        self, status: JobStatus, error: str | None = None, name: str = "orders", **options: Any
    ) -> UUID:
        """A job that has ended like this."""
        job_id = self.submit(name, **options)
        claim = self.claim(job_id)
        assert self.jobs.finish(self.control, claim, status, actor="tester", error=error)
        return job_id

    def give_back(self, claim: Claim, error: str, delay_seconds: float = 0.0) -> None:
        """The attempt fails, and the job is to be tried again."""
        assert self.jobs.give_back(
            self.control, claim, actor="tester", error=error, delay_seconds=delay_seconds
        )

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
            "UPDATE tidegate_control.jobs j SET submitted_at = submitted_at - age,"
            " started_at = started_at - age, finished_at = finished_at - age"
            " FROM (SELECT %(age)s::interval AS age) a WHERE j.job_id = %(job_id)s",
            {"age": f"{days} days", "job_id": job_id},
        )

    def counts(self) -> dict[str, int]:
        """How many rows there are of everything that a command could write."""
        return {
            table: self.place.control.value(f"SELECT count(*) FROM tidegate_control.{table}")
            for table in TABLES
        }

    def status(self, job_id: UUID) -> str:
        return str(
            self.place.control.value(
                f"SELECT status FROM tidegate_control.jobs WHERE job_id = '{job_id}'"
            )
        )

    def lose_worker(self) -> None:
        """The worker's session ends, as when its process is killed."""
        self.session.execute("SELECT pg_advisory_unlock_all()")


@contextmanager
def open_desk(place: Place, kinds: tuple[str, ...] = (SYNC,)) -> Iterator[Desk]:
    place.source.execute(
        *CREATE,
        FILL,
        "CREATE TABLE customers (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL)",
    )
    project = place.open()
    project.context.control_id()
    worker = Worker.of_this_process(project.name, "tidegate worker", kinds, 4)
    with project.context.plane.connect() as control, project.context.plane.connect() as session:
        Workers(project.context.plane).register(session, worker, "0")
        yield Desk(place, project, control, worker, session)
    project.close()
