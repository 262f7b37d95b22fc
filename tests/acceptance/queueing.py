"""A queue with real `tidegate worker` processes on it, and what must hold when all is done."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from acceptance import oracle
from acceptance.harness import Scene
from acceptance.processes import (
    PATIENCE_SECONDS,
    STOPPED,
    Process,
    WarmProcess,
    state_of,
    until,
)
from tidegate.control.jobs import Jobs
from tidegate.model.job import NOTHING, VACUUM, JobRequest, LockAt, Submitted
from tidegate.model.maintenance import Order
from tidegate.model.relation import Endpoint, Relation
from tidegate.project import Project
from tidegate.runtime.cancel import Cancelled, cancel_job
from tidegate.runtime.claiming import table_resource
from tidegate.runtime.maintaining import maintenance_request
from tidegate.runtime.runner import RunOptions, sync_request

# What the defaults spread over seconds must not take seconds here.
QUICK = {"poll": "1s", "sweep": "0.5s", "retry_after": "0.5s"}
SHORT_LEASE = {**QUICK, "lease": "3s", "heartbeat": "1s"}
ENDED = ("done", "failed", "cancelled")

_CANCEL = """
import sys, uuid
from tidegate.project import Project
from tidegate.runtime.cancel import cancel_job
with Project.open(sys.argv[1]) as project, project.context.plane.connect() as control:
    cancel_job(project.context, control, uuid.UUID(sys.argv[2]), actor="test")
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands."""

    status: str
    error: str | None
    attempt_count: int
    error_count: int
    crash_count: int


@dataclass(slots=True)
class Queue:
    """The queue of a scene's project; its processes end with the scene."""

    scene: Scene
    submitted: list[UUID] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.opened():
            pass

    @contextmanager
    def opened(self) -> Iterator[Project]:
        with Project.open(self.scene.folder) as project:
            project.context.control_id()
            yield project

    def submit_sync(self, name: str = "orders", **options: Any) -> UUID:
        """As `tidegate run --queue` does: several of one table may wait."""
        with self.opened() as project:
            request = sync_request(project.context, project.sync(name), RunOptions())
            waiting = replace(request, **{"lock_at": LockAt.CLAIM, **options})
            return self._submit(project, [waiting])[0]

    def submit_locked_sync(self, name: str = "orders") -> UUID:
        """One that takes its lock at once."""
        with self.opened() as project:
            request = sync_request(project.context, project.sync(name), RunOptions())
            return self._submit(project, [request])[0]

    def submit_nothing(self, count: int = 1, **options: Any) -> list[UUID]:
        """Jobs that do nothing."""
        options.setdefault("lock_at", LockAt.NEVER)
        with self.opened() as project:
            requests = [
                JobRequest(project.name, NOTHING, f"nothing-{number}", None, **options)
                for number in range(count)
            ]
            return self._submit(project, requests)

    def submit_vacuum(self, name: str = "orders") -> UUID:
        with self.opened() as project:
            target = project.sync(name).target
            resource = table_resource(project.context, target)
            payload = {"target": str(target)}
            request = JobRequest(project.name, VACUUM, name, resource, payload)
            return self._submit(project, [request])[0]

    def submit_maintenance(self, order: Order, name: str = "orders", **options: Any) -> UUID:
        """Of a table of the lake; it takes its lock at once unless it says otherwise."""
        with self.opened() as project:
            target = Endpoint("lake", Relation("raw", name))
            request = maintenance_request(project.context, target, order, actor="test")
            return self._submit(project, [replace(request, **options)])[0]

    def cancel(self, job_id: UUID) -> Cancelled:
        """As `tidegate job cancel` does; returns when that answers."""
        with self.opened() as project, project.context.plane.connect() as control:
            return cancel_job(project.context, control, job_id, actor="test")

    def start_canceller(self, job_id: UUID, *, failpoint: str) -> Process:
        """A cancel in a process of its own, to be killed."""
        command = [sys.executable, "-c", _CANCEL, str(self.scene.folder), str(job_id)]
        process = Process(command, self._log("cancel"), {"TIDEGATE_FAILPOINT": failpoint})
        self.scene.ends(process)
        return process

    def start_command(
        self,
        command: str,
        *options: str,
        before: tuple[str, ...] = (),
        failpoint: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Any command of Tidegate in the project."""
        armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
        armed |= self.scene.environment
        words = [*before, command, "--project", str(self.scene.folder), *options]
        if environment is None:
            process: Process = WarmProcess(["tidegate", *words], self._log(command), armed)
        else:
            # It may change how Python itself starts.
            cold = [sys.executable, "-m", "tidegate", *words]
            process = Process(cold, self._log(command), {**armed, **environment})
        self.scene.ends(process)
        return process

    def start(self, *options: str, **how: Any) -> Process:
        """`tidegate worker`."""
        return self.start_command("worker", *options, **how)

    def start_up(self, *options: str, **how: Any) -> Process:
        """`tidegate up`."""
        return self.start_command("up", *options, **how)

    def start_ready(self, *options: str, **how: Any) -> Process:
        """A worker that has taken its place."""
        process = self.start(*options, **how)
        process.wait_for(lambda: " takes " in process.out, "a worker to be ready")
        return process

    def start_and_hold(self, point: str, *options: str) -> tuple[Process, Path]:
        """A worker that waits at a failpoint until the returned file is removed."""
        flag = self.scene.new_flag(point)
        process = self.start(*options, failpoint=f"{point}=wait:{flag}")
        process.wait_for(flag.exists, point)
        return process, flag

    def burst(self, *options: str) -> None:
        """A worker that does what is left, and must succeed."""
        ended = self.start("--burst", *options).wait()
        assert ended.code == 0, ended

    def sweep(self) -> None:
        ended = self.start_command("sweeper", "--once").wait()
        assert ended.code == 0, ended

    def job(self, job_id: UUID) -> Job:
        with psycopg.connect(self.scene.control, row_factory=dict_row) as connection:
            row = connection.execute(
                "SELECT status, error, attempt_count, error_count, crash_count"
                " FROM tidegate_control.jobs WHERE job_id = %s",
                (job_id,),
            ).fetchone()
        assert row is not None
        return Job(**row)

    def wait_for(
        self, job_id: UUID, status: str = "done", seconds: float = PATIENCE_SECONDS
    ) -> Job:
        until(lambda: self.job(job_id).status in (status, *ENDED), f"a job to be {status}", seconds)
        found = self.job(job_id)
        assert found.status == status, found
        return found

    def wait_until_ended(self, *jobs: UUID, seconds: float = 60) -> None:
        until(lambda: all(self.job(one).status in ENDED for one in jobs), "jobs to end", seconds)

    def running_job(self) -> UUID:
        """The only one."""
        found = oracle.scalar(
            self.scene.control, "SELECT job_id FROM tidegate_control.jobs WHERE status = 'running'"
        )
        assert isinstance(found, UUID)
        return found

    def counts(self) -> dict[str, int]:
        """How many jobs have which status."""
        with psycopg.connect(self.scene.control, autocommit=True) as connection:
            return dict(
                connection.execute(
                    "SELECT status, count(*) FROM tidegate_control.jobs GROUP BY 1"
                ).fetchall()
            )

    def ends_of(self, job_id: UUID) -> list[str]:
        """Every terminal state that was ever written for a job, from its audit."""
        with psycopg.connect(self.scene.control, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT event FROM tidegate_control.job_audit WHERE job_id = %s"
                " AND event = ANY(%s) ORDER BY id",
                (job_id, list(ENDED)),
            )
            return [event for (event,) in rows]

    def unfinished(self) -> int:
        count = oracle.scalar(self.scene.control, "SELECT count(*) FROM tidegate_control.job_queue")
        return int(str(count))

    def worker_pids(self) -> set[int]:
        """The processes on the register of workers."""
        with psycopg.connect(self.scene.control) as connection:
            rows = connection.execute(
                "SELECT pid FROM tidegate_control.workers WHERE command = 'tidegate worker'"
            )
            return {pid for (pid,) in rows}

    def holder(self, job_id: UUID) -> int | None:
        """The process that works on a job."""
        with psycopg.connect(self.scene.control) as connection:
            row = connection.execute(
                "SELECT w.pid FROM tidegate_control.job_queue q"
                " JOIN tidegate_control.workers w ON w.worker_id = q.claimed_by"
                " WHERE q.job_id = %s",
                (job_id,),
            ).fetchone()
        return None if row is None else int(row[0])

    @contextmanager
    def locked(self, job_id: UUID) -> Iterator[None]:
        """Nobody can write the queue row of this job meanwhile."""
        with psycopg.connect(self.scene.control) as connection:
            connection.execute(
                "SELECT FROM tidegate_control.job_queue WHERE job_id = %s FOR UPDATE", (job_id,)
            )
            yield
            connection.rollback()

    def assert_all_done(self) -> None:
        """Every job is done, once; nothing is held, and the data is right."""
        with psycopg.connect(self.scene.control) as connection:
            states = dict(
                connection.execute("SELECT job_id, status FROM tidegate_control.jobs").fetchall()
            )
        assert set(states) == set(self.submitted), "a job was lost, or came from nowhere"
        assert [one for one, status in states.items() if status != "done"] == []
        self.assert_ended_once()
        self.scene.assert_exact()

    def assert_ended_once(self) -> None:
        """Each job has ended once, and nothing is held."""
        self.assert_each_ended_once()
        oracle.assert_idle(self.scene.control)

    def assert_each_ended_once(self) -> None:
        """One terminal audit line a job, that of its status; at most one attempt that ended it."""
        with psycopg.connect(self.scene.control) as connection:
            wrong = connection.execute(
                "SELECT j.job_id, j.status, array_agg(a.event ORDER BY a.id)"
                " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_audit a"
                " ON a.job_id = j.job_id AND a.event = ANY(%s)"
                " GROUP BY 1 HAVING array_agg(a.event) IS DISTINCT FROM ARRAY[j.status]",
                (list(ENDED),),
            ).fetchall()
            assert wrong == [], "not exactly one terminal event"
            several = connection.execute(
                "SELECT job_id FROM tidegate_control.job_attempts WHERE outcome = ANY(%s)"
                " GROUP BY job_id HAVING count(*) > 1",
                (list(ENDED),),
            ).fetchall()
            assert several == [], "two attempts ended one job"

    def close(self) -> None:
        """End what `up` has left behind."""
        self.scene.close()
        for pid in self.worker_pids():
            _kill(pid)

    def _submit(self, project: Project, requests: list[JobRequest]) -> list[UUID]:
        jobs, submitted = Jobs(project.context.plane), []
        with project.context.plane.connect() as control:
            for request in requests:
                answer = jobs.submit(control, request, "test")
                assert answer.outcome is Submitted.QUEUED, answer
                assert answer.job_id is not None
                submitted.append(answer.job_id)
        self.submitted += submitted
        return submitted

    def _log(self, command: str) -> Path:
        return self.scene.folder / f"{command}-{self.scene.number()}"


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached a process."""
    return state_of(pid) == STOPPED


def is_gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z", "X")


def _kill(pid: int) -> None:
    """End a worker that `up` left behind, if it still is one."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"tidegate\0worker" in command:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
