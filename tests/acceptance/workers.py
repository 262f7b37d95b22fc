"""A queue with real `tidegate worker` processes on it, and what must hold when all is done."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from acceptance import oracle
from acceptance.harness import Scene
from acceptance.processes import PATIENCE_SECONDS, Process, WarmProcess, until
from tidegate.control.jobs import Jobs
from tidegate.model.job import NOTHING, VACUUM, JobRequest, LockAt
from tidegate.project import Project
from tidegate.runtime.claiming import table_resource
from tidegate.runtime.runner import RunOptions, sync_request

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
    """The queue of a scene's project."""

    scene: Scene
    submitted: list[UUID] = field(default_factory=list)
    _started: list[Process] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        with Project.open(self.scene.folder) as project:
            project.context.control_id()

    def submit_sync(self, name: str = "orders") -> UUID:
        """One that takes its lock at once."""
        with Project.open(self.scene.folder) as project:
            request = sync_request(project.context, project.sync(name), RunOptions())
            return self._submit(project, [request])[0]

    def submit_syncs(self, *names: str) -> list[UUID]:
        """Several of one table may wait; a job that is killed often is not given up."""
        with Project.open(self.scene.folder) as project:
            requests = [
                sync_request(project.context, project.sync(name), RunOptions()) for name in names
            ]
            patient = [replace(one, lock_at=LockAt.CLAIM, max_attempts=100) for one in requests]
            return self._submit(project, patient)

    def submit_nothing(self, count: int = 1) -> list[UUID]:
        with Project.open(self.scene.folder) as project:
            requests = [
                JobRequest(
                    project.name,
                    NOTHING,
                    f"noop-{number}",
                    None,
                    max_attempts=100,
                    lock_at=LockAt.NEVER,
                )
                for number in range(count)
            ]
            return self._submit(project, requests)

    def submit_vacuum(self, name: str = "orders") -> UUID:
        with Project.open(self.scene.folder) as project:
            target = project.sync(name).target
            resource = table_resource(project.context, target)
            payload = {"target": str(target)}
            request = JobRequest(project.name, VACUUM, name, resource, payload)
            return self._submit(project, [request])[0]

    def start(self, *options: str, failpoint: str | None = None) -> Process:
        """`tidegate worker`."""
        return self._start("worker", *options, failpoint=failpoint)

    def start_up(self, *options: str, failpoint: str | None = None) -> Process:
        """`tidegate up`."""
        return self._start("up", *options, failpoint=failpoint)

    def start_ready(self, *options: str, failpoint: str | None = None) -> Process:
        """A worker that has taken its place."""
        process = self.start(*options, failpoint=failpoint)
        process.wait_for(lambda: " takes " in process.out, "a worker to be ready")
        return process

    def start_and_hold(self, point: str, *options: str) -> tuple[Process, Path]:
        """A worker that waits at a failpoint until the returned file is removed."""
        flag = self.scene.flag(f"{point}-{next(self._numbers)}")
        process = self.start(*options, failpoint=f"{point}=wait:{flag}")
        process.wait_for(flag.exists, point)
        return process, flag

    def burst(self, *options: str) -> None:
        """A worker that does what is left, and must succeed."""
        ended = self.start("--burst", *options).wait()
        assert ended.code == 0, ended

    def sweep(self) -> None:
        ended = self._start("sweeper", "--once").wait()
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
        """One terminal audit line a job, at most one attempt that ended it, nothing held."""
        with psycopg.connect(self.scene.control) as connection:
            wrong = connection.execute(
                "SELECT j.job_id, array_agg(a.event ORDER BY a.id)"
                " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_audit a"
                " ON a.job_id = j.job_id AND a.event = ANY(%s)"
                " GROUP BY 1 HAVING count(a.event) <> 1",
                (list(ENDED),),
            ).fetchall()
            assert wrong == [], "not exactly one terminal event"
            several = connection.execute(
                "SELECT job_id FROM tidegate_control.job_attempts WHERE outcome = ANY(%s)"
                " GROUP BY job_id HAVING count(*) > 1",
                (list(ENDED),),
            ).fetchall()
            assert several == [], "two attempts ended one job"
        oracle.assert_idle(self.scene.control)

    def close(self) -> None:
        for process in self._started:
            # What is stopped would not even hear a SIGTERM that its dead parent left for it.
            process.kill_all()
        for pid in self.worker_pids():
            _kill(pid)

    def _submit(self, project: Project, requests: list[JobRequest]) -> list[UUID]:
        jobs, submitted = Jobs(project.context.plane), []
        with project.context.plane.connect() as control:
            for request in requests:
                job_id = jobs.submit(control, request, "test").job_id
                assert job_id is not None, request
                submitted.append(job_id)
        self.submitted += submitted
        return submitted

    def _start(self, command: str, *options: str, failpoint: str | None = None) -> Process:
        log = self.scene.folder / f"{command}-{next(self._numbers)}"
        words = ["tidegate", command, "--project", str(self.scene.folder)]
        armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
        process = WarmProcess([*words, *options], log, armed)
        self._started.append(process)
        return process


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached a process."""
    return _state(pid) == "T"


def is_gone(pid: int) -> bool:
    return _state(pid) in ("", "Z", "X")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _kill(pid: int) -> None:
    """End a worker that `up` left behind, if it still is one."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"tidegate\0worker" in command:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
