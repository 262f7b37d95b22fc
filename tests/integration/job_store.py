"""A control plane for tests of the job store: one database a module, emptied between the tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from tidegate.control.cancels import Cancels
from tidegate.control.dead import DeadAttempts
from tidegate.control.job_records import JobRecord, JobRecords
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.control.workers import Worker, Workers
from tidegate.model.job import Claim, JobRequest, LockAt, Submitted
from tidegate.postgres.connect import Connection, connect
from tidegate.postgres.embedded import EmbeddedServer

RESOURCE = "postgres:1/warehouse/raw.orders"
EVERYTHING = "jobs, job_queue, job_attempts, job_actions, table_locks, workers, job_audit"


def request(**options: Any) -> JobRequest:
    """A job that locks nothing, unless the options say otherwise."""
    given = {
        "project": "shop",
        "kind": "sync",
        "name": "orders",
        "resource": RESOURCE,
        "payload": {"target": "w:raw.orders"},
        "lock_at": LockAt.NEVER,
    }
    return JobRequest(**(given | options))


def end_session(own: Connection, watching: Connection) -> None:
    """Close a session and wait until its backend, and so its advisory lock, is gone."""
    pid = own.info.backend_pid
    own.close()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = %s)"
    while watching.execute(gone, (pid,)).fetchone() != (True,):
        pass


@dataclass
class Store:
    """The parts of the job store on one database, with short ways to use them."""

    plane: ControlPlane
    session: Connection
    stack: ExitStack
    sessions: dict[str, Connection] = field(default_factory=dict)

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self.plane)

    @cached_property
    def dead(self) -> DeadAttempts:
        return DeadAttempts(self.plane)

    @cached_property
    def cancels(self) -> Cancels:
        return Cancels(self.plane)

    def submit(self, **options: Any) -> UUID:
        submitted = self.jobs.submit(self.session, request(**options), "test")
        assert submitted.outcome is Submitted.QUEUED
        assert submitted.job_id is not None
        return submitted.job_id

    def worker(self) -> Worker:
        """A live worker with a session of its own."""
        worker = Worker.of_this_process()
        own = self.stack.enter_context(self.plane.connect())
        Workers(self.plane).register(own, worker, "0")
        self.sessions[worker.worker_id] = own
        return worker

    def kill(self, worker_id: str) -> None:
        """The session of a worker ends, and with it the worker."""
        end_session(self.sessions.pop(worker_id), self.session)

    def claim(
        self,
        limit: int = 1,
        *,
        worker_id: str = "worker",
        project: str = "shop",
        kinds: Sequence[str] = ("sync",),
        lease: float = 60,
        session: Connection | None = None,
    ) -> list[Claim]:
        return self.jobs.claim_ready(
            session or self.session,
            worker_id,
            project=project,
            kinds=kinds,
            lease_seconds=lease,
            limit=limit,
        )

    def claim_one(self, **options: Any) -> Claim:
        (found,) = self.claim(**options)
        return found

    def expire(self, job_id: UUID) -> None:
        """The lease of a job runs out."""
        self.execute(
            "UPDATE job_queue SET lease_until = now() - interval '1 second' WHERE job_id = %s",
            job_id,
        )

    def get(self, job_id: UUID) -> JobRecord:
        found = JobRecords(self.plane).get(self.session, job_id)
        assert found is not None
        return found

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL in the control schema."""
        cursor = self.session.execute(statement, parameters)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        return self.execute(statement, *parameters)[0][0]

    def locked(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT resource FROM table_locks")}

    def audit(self, job_id: UUID) -> list[str]:
        rows = self.execute("SELECT event FROM job_audit WHERE job_id = %s ORDER BY id", job_id)
        return [row[0] for row in rows]

    def outcomes(self, job_id: UUID) -> list[tuple[Any, ...]]:
        """How the attempts at a job ended, in their order."""
        return self.execute(
            "SELECT outcome, error FROM job_attempts WHERE job_id = %s ORDER BY fence", job_id
        )

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables, for seeing that nothing was changed."""
        return {
            table: self.execute(f"SELECT t::text FROM {table} t ORDER BY 1")
            for table in [*EVERYTHING.split(", "), "control_plane"]
        }

    def clean(self) -> None:
        for worker_id in list(self.sessions):
            self.kill(worker_id)
        self.execute(f"TRUNCATE {EVERYTHING} RESTART IDENTITY CASCADE")
        self.plane.stop_draining(self.session)


@contextmanager
def open_store(server: EmbeddedServer) -> Iterator[Store]:
    """A migrated control plane on a database of its own."""
    name = f"store_{uuid.uuid4().hex[:12]}"
    server.ensure_database(name)
    plane = ControlPlane(
        partial(connect, server.conninfo(name), name="the control database", autocommit=True)
    )
    with ExitStack() as stack:
        session = stack.enter_context(plane.connect())
        plane.migrate(session)
        session.execute("SET search_path = tidegate_control")
        yield Store(plane, session, stack)
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))
