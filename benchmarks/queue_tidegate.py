"""Tidegate's own queue and worker: the command itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.queue_side import Stamps, span_of
from tidegate.core.identity import new_job_id
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import NOTHING, JobRequest, LockAt
from tidegate.jobs.queue import Jobs
from tidegate.postgres.connection import Connection

REQUEST = JobRequest("bench", NOTHING, "noop", None, lock_at=LockAt.NEVER)
_TABLES = ("job_queue", "job_attempts", "job_actions", "table_locks", "job_audit", "jobs")
# What a submit writes, for many jobs at once.
_FILL = """
WITH job AS (
    INSERT INTO {schema}.jobs (job_id, project, kind, name, payload, lock_at, submitted_by)
    SELECT job_id, 'bench', %(kind)s, 'noop', '{{}}', 'never', 'bench'
    FROM unnest(%(ids)s::uuid[]) AS i(job_id) RETURNING job_id
), queued AS (
    INSERT INTO {schema}.job_queue (job_id, project, kind) SELECT job_id, 'bench', %(kind)s FROM job
)
INSERT INTO {schema}.job_audit (job_id, event, actor) SELECT job_id, 'submitted', 'bench' FROM job
"""
_SPAN = """
SELECT count(*), extract(epoch FROM max(j.finished_at) - min(a.started_at))::float8
FROM {schema}.jobs j JOIN {schema}.job_attempts a USING (job_id)
WHERE j.status = 'done'
"""
_STAMPS = """
SELECT j.job_id::text, extract(epoch FROM a.started_at)::float8,
       extract(epoch FROM j.finished_at)::float8
FROM {schema}.jobs j JOIN {schema}.job_attempts a USING (job_id) WHERE j.status = 'done'
"""


class TidegateQueue:
    """The control tables of a project, and `tidegate worker` started in its folder."""

    def __init__(
        self, folder: Path, plane: ControlDatabase, connection: Connection, concurrency: int
    ) -> None:
        self.connection = connection
        self._folder = folder
        self._plane = plane
        self._jobs = Jobs(plane)
        self._concurrency = concurrency
        self._worker: subprocess.Popen[bytes] | None = None

    def empty(self) -> None:
        tables = ", ".join(f"{self._plane.schema}.{table}" for table in _TABLES)
        self.connection.execute(f"TRUNCATE {tables} CASCADE")

    def enqueue(self, count: int) -> None:
        ids = [new_job_id() for _ in range(count)]
        fill = _FILL.format(schema=self._plane.schema)
        self.connection.execute(fill, {"ids": ids, "kind": NOTHING})

    def work(self) -> None:
        subprocess.run(self._command("--burst"), cwd=self._folder, check=True, capture_output=True)

    def span(self, count: int) -> float:
        return span_of(self.connection, _SPAN.format(schema=self._plane.schema), count)

    def wait(self) -> None:
        """Start a worker that waits for jobs."""
        self._worker = subprocess.Popen(
            self._command(),
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def submit(self) -> tuple[str, float]:
        submission = self._jobs.submit(self.connection, REQUEST, "bench")
        return str(submission.job_id), time.time()

    def stamps(self) -> dict[str, Stamps]:
        rows = self.connection.execute(_STAMPS.format(schema=self._plane.schema))
        return {row[0]: Stamps(row[1], row[2]) for row in rows}

    def close(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait()

    def _command(self, *options: str) -> list[str]:
        return [
            sys.executable, "-m", "tidegate.cli.main", "worker",
            "--concurrency", str(self._concurrency), "--kinds", NOTHING, *options,
        ]  # fmt: skip
