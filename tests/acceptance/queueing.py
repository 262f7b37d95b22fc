"""A queue with real `tidegate worker` processes on it, and what must hold when all is done."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from acceptance import oracle
from acceptance.harness import Scene
from acceptance.processes import PATIENCE_SECONDS, STOPPED, Process, state_of, until
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.table_actions import ActionList
from tidegate.jobs.cancel import Cancelled, cancel_job
from tidegate.jobs.claim import table_resource
from tidegate.jobs.job import NOTHING, VACUUM, JobRequest, LockAt, Submitted
from tidegate.jobs.queue import Jobs
from tidegate.load.runner import RunOptions, sync_request
from tidegate.maintenance.submit import maintenance_request
from tidegate.project import Project

# What the defaults spread over seconds must not take seconds here.
QUICK = {"poll": "1s", "sweep": "0.5s", "retry_after": "0.5s"}
SHORT_LEASE = {**QUICK, "lease": "3s", "heartbeat": "1s"}
ENDED = ("done", "failed", "cancelled")


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
        return self.submit_locked_sync(name, **{"lock_at": LockAt.CLAIM, **options})

    def submit_locked_sync(self, name: str = "orders", **options: Any) -> UUID:
        """One that takes its lock at once."""
        with self.opened() as project:
            request = sync_request(project.context, project.sync(name), RunOptions())
            return self._submit(project, [replace(request, **options)])[0]

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

    def submit_maintenance(self, order: ActionList, name: str = "orders", **options: Any) -> UUID:
        """Of a table of the lake; it takes its lock at once unless it says otherwise."""
        with self.opened() as project:
            target = Endpoint("lake", Relation("raw", name))
            request = maintenance_request(project.context, target, order, actor="test")
            return self._submit(project, [replace(request, **options)])[0]

    def cancel(self, job_id: UUID) -> Cancelled:
        """As `tidegate job cancel` does; returns when that answers."""
        with self.opened() as project, project.context.plane.connect() as control:
            return cancel_job(project.context, control, job_id, actor="test")

    def start(
        self, *options: str, before: tuple[str, ...] = (), failpoint: str | None = None
    ) -> Process:
        """`tidegate worker`."""
        return self.scene.start_command(*before, "worker", *options, failpoint=failpoint)

    def start_up(self, *options: str, failpoint: str | None = None) -> Process:
        """`tidegate up`."""
        return self.scene.start_command("up", *options, failpoint=failpoint)

    def start_ready(self, *options: str, **how: Any) -> Process:
        """A worker that has taken its place."""
        process = self.start(*options, **how)
        process.wait_for(lambda: " takes " in process.out, "a worker to be ready")
        return process

    def start_and_hold(self, point: str, *options: str) -> tuple[Process, Path]:
        """A worker that waits at a failpoint until the returned file is removed."""
        return self.scene.hold(point, lambda armed: self.start(*options, failpoint=armed))

    def burst(self, *options: str) -> None:
        """A worker that does what is left, and must succeed."""
        ended = self.start("--burst", *options).wait()
        assert ended.code == 0, ended

    def sweep(self) -> dict[str, int]:
        """Once; how many of what were swept."""
        ended = self.scene.command("sweeper", "--once", "--json")
        assert ended.code == 0, ended
        swept: dict[str, int] = json.loads(ended.out)
        return swept

    def job(self, job_id: UUID) -> Job:
        query = (
            "SELECT status, error, attempt_count, error_count, crash_count"
            " FROM tidegate_control.jobs WHERE job_id = %s"
        )
        (row,) = self._rows(query, job_id)
        return Job(*row)

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
        query = "SELECT job_id FROM tidegate_control.jobs WHERE status = 'running'"
        ((found,),) = self._rows(query)
        assert isinstance(found, UUID)
        return found

    def counts(self) -> dict[str, int]:
        """How many jobs have which status."""
        return dict(self._rows("SELECT status, count(*) FROM tidegate_control.jobs GROUP BY 1"))

    def ends_of(self, job_id: UUID) -> list[str]:
        """Every terminal state that was ever written for a job, from its audit."""
        query = (
            "SELECT event FROM tidegate_control.job_audit WHERE job_id = %s"
            " AND event = ANY(%s) ORDER BY id"
        )
        return [event for (event,) in self._rows(query, job_id, list(ENDED))]

    def unfinished(self) -> int:
        return len(self._rows("SELECT job_id FROM tidegate_control.job_queue"))

    def worker_pids(self) -> set[int]:
        """The processes on the register of workers."""
        query = "SELECT pid FROM tidegate_control.workers WHERE command = 'tidegate worker'"
        return {pid for (pid,) in self._rows(query)}

    def holder(self, job_id: UUID) -> int | None:
        """The process that works on a job."""
        query = (
            "SELECT w.pid FROM tidegate_control.job_queue q JOIN tidegate_control.workers w"
            " ON w.worker_id = q.claimed_by WHERE q.job_id = %s"
        )
        return next((int(pid) for (pid,) in self._rows(query, job_id)), None)

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
        states = dict(self._rows("SELECT job_id, status FROM tidegate_control.jobs"))
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
        wrong = (
            "SELECT j.job_id, j.status, array_agg(a.event ORDER BY a.id)"
            " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_audit a"
            " ON a.job_id = j.job_id AND a.event = ANY(%s)"
            " GROUP BY 1 HAVING array_agg(a.event) IS DISTINCT FROM ARRAY[j.status]"
        )
        assert self._rows(wrong, list(ENDED)) == [], "not exactly one terminal event"
        several = (
            "SELECT job_id FROM tidegate_control.job_attempts WHERE outcome = ANY(%s)"
            " GROUP BY job_id HAVING count(*) > 1"
        )
        assert self._rows(several, list(ENDED)) == [], "two attempts ended one job"

    def _rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return oracle.rows(self.scene.control, query, *parameters)

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
