"""Control planes for tests of jobs: one database a module, emptied between the tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar
from uuid import UUID

import pytest

from databases import Databases
from integration.conftest import MakePlace
from integration.shared_places import shared_places
from tidegate.jobs.cancel import Cancels
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import Claim, JobRequest, JobStatus, LockAt, Submission, Submitted
from tidegate.jobs.job_records import JobRecord, JobRecords
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempt, LostAttempts
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.postgres.connection import Connection, connect
from tidegate.postgres.embedded import EmbeddedServer

RESOURCE = "postgres:1/warehouse/raw.orders"
TABLES = ("jobs", "job_queue", "job_attempts", "job_actions", "table_locks", "workers", "job_audit")
EMPTY = """
DO $$ DECLARE one text; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR one IN SELECT relname FROM pg_class
        WHERE relnamespace = 'tidegate_control'::regnamespace AND relkind IN ('r', 'p')
        AND NOT relispartition AND relname NOT IN ('control_plane', 'schema_migrations')
    LOOP EXECUTE format('DELETE FROM tidegate_control.%I', one); END LOOP;
END $$
"""
Answer = TypeVar("Answer")


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


@dataclass(kw_only=True)
class Store:
    """The parts of the job store on one database, with short ways to use them."""

    plane: ControlDatabase
    session: Connection
    """of the test's own, in the control schema"""
    stack: ExitStack
    sessions: dict[str, Connection] = field(default_factory=dict)
    """of the workers that live"""

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self.plane)

    @cached_property
    def dead(self) -> LostAttempts:
        return LostAttempts(self.plane)

    @cached_property
    def cancels(self) -> Cancels:
        return Cancels(self.plane)

    @property
    def worker_id(self) -> str:
        """Whose claims are those of the test."""
        return "worker"

    def request(self, name: str = "orders", **options: Any) -> JobRequest:
        return request(name=name, **options)

    def ask(self, **options: Any) -> Submission:
        """Whatever becomes of a request."""
        return self.jobs.submit(self.session, self.request(**options), "tester")

    def submit(self, name: str = "orders", **options: Any) -> UUID:
        submitted = self.ask(name=name, **options)
        assert submitted.outcome is Submitted.QUEUED
        assert submitted.job_id is not None
        return submitted.job_id

    def new_worker(self) -> WorkerIdentity:
        """A live worker with a session of its own."""
        worker = WorkerIdentity.of_this_process()
        own = self.stack.enter_context(self.plane.connect())
        Workers(self.plane).register(own, worker, "0")
        self.sessions[worker.worker_id] = own
        return worker

    def kill(self, worker_id: str) -> None:
        """The session of a worker ends, and with it the worker."""
        end_session(self.sessions.pop(worker_id), self.session)

    def take(
        self,
        limit: int = 1,
        *,
        worker_id: str | None = None,
        project: str = "shop",
        kinds: Sequence[str] = ("sync",),
        lease: float = 60,
        session: Connection | None = None,
    ) -> list[Claim]:
        """Claim what comes next."""
        return self.jobs.claim_ready(
            session or self.session,
            worker_id or self.worker_id,
            project=project,
            kinds=kinds,
            lease_seconds=lease,
            limit=limit,
        )

    def take_one(self, **options: Any) -> Claim:
        (found,) = self.take(**options)
        return found

    def claim(self, job_id: UUID, lease_seconds: float = 60) -> Claim:
        """Claim this very job."""
        found = self.jobs.claim(self.session, self.worker_id, job_id, lease_seconds=lease_seconds)
        assert found is not None
        return found

    def finish(
        self,
        claim: Claim,
        status: JobStatus = JobStatus.DONE,
        error: str | None = None,
        **more: Any,
    ) -> bool:
        return self.jobs.finish(self.session, claim, status, actor="tester", error=error, **more)

    def end(
        self, status: JobStatus, error: str | None = None, name: str = "orders", **options: Any
    ) -> UUID:
        """A job that has ended like this."""
        job_id = self.submit(name, **options)
        assert self.finish(self.claim(job_id), status, error)
        return job_id

    def give_back(self, claim: Claim, error: str | None = None, delay_seconds: float = 0.0) -> bool:
        return self.jobs.give_back(
            self.session, claim, actor="tester", error=error, delay_seconds=delay_seconds
        )

    def expire(self, job_id: UUID, seconds: float = 1) -> None:
        """The lease of a job has run out."""
        self.execute(
            "UPDATE job_queue SET lease_until = now() - %s * interval '1 second' WHERE job_id = %s",
            seconds,
            job_id,
        )

    def reclaim(self, **options: Any) -> LostAttempt:
        """A sweeper takes back the one job whose attempt is dead."""
        (dead,) = self.dead.list(self.session)
        assert self.dead.reclaim(self.session, dead, "sweeper", **options)
        return dead

    def get(self, job_id: UUID) -> JobRecord:
        found = JobRecords(self.plane).get(self.session, job_id)
        assert found is not None
        return found

    def status(self, job_id: UUID) -> str:
        return self.get(job_id).status.value

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL in the control schema."""
        cursor = self.session.execute(statement, parameters)
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
            for table in (*TABLES, "control_plane")
        }

    def at_once(self, count: int, act: Callable[[Connection, int], Answer]) -> list[Answer]:
        """So many threads that start together, each on a session of its own."""
        start = threading.Barrier(count)

        def work(number: int) -> Answer:
            with self.plane.connect() as own:
                start.wait(60)
                return act(own, number)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(work, range(count)))

    def clean(self) -> None:
        for worker_id in list(self.sessions):
            self.kill(worker_id)
        self.session.execute(EMPTY)
        self.plane.stop_draining(self.session)


@contextmanager
def control_session(plane: ControlDatabase) -> Iterator[dict[str, Any]]:
    """What a store is made of."""
    with ExitStack() as stack:
        session = stack.enter_context(plane.connect())
        session.execute("SET search_path = tidegate_control")
        yield {"plane": plane, "session": session, "stack": stack}


@contextmanager
def open_store(server: EmbeddedServer, databases: Databases) -> Iterator[Store]:
    """A control plane on a database of its own."""
    name = databases.make("store", control=True)
    plane = ControlDatabase(
        partial(connect, server.conninfo(name), name="the control database", autocommit=True)
    )
    with control_session(plane) as parts:
        yield Store(**parts)
    databases.give_back(name)


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer, kept_databases: Databases) -> Iterator[Store]:
    with open_store(server, kept_databases) as made:
        yield made


@pytest.fixture
def store(opened: Store) -> Store:
    """A store without a job."""
    opened.clean()
    return opened


def shared(opening: Callable[[MakePlace], AbstractContextManager[Store]]) -> tuple[Any, Any]:
    """Two fixtures: `opened` for a whole module, and what a test gets of it, without a job."""

    @pytest.fixture(scope="module")
    def opened(
        kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Store]:
        with (
            shared_places(kept_databases, tmp_path_factory.mktemp("places")) as places,
            opening(places) as made,
        ):
            yield made

    @pytest.fixture
    def cleaned(opened: Store) -> Store:
        opened.clean()
        return opened

    return opened, cleaned
