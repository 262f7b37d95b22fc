"""The depth query with a long history: it must read the queue's index and nothing else."""

from __future__ import annotations

import time

from benchmarks.queue_side import settle
from benchmarks.report import Report
from tidegate.jobs.control_database import ControlDatabase
from tidegate.postgres.connection import Connection

_QUEUED = """
WITH queued AS (
    INSERT INTO {schema}.jobs
        (job_id, project, kind, name, payload, status, lock_at, submitted_by)
    SELECT gen_random_uuid(), 'bench', 'noop', 'noop', '{{}}', '{status}', 'never', 'bench'
    FROM generate_series(1, {count}) RETURNING job_id
)
INSERT INTO {schema}.job_queue (job_id, kind, project) SELECT job_id, 'noop', 'bench' FROM queued
"""
_FINISHED = """
DELETE FROM {schema}.job_queue q USING {schema}.jobs j
WHERE j.job_id = q.job_id AND j.status = 'done'
"""
WAITING = 1_000
_AT_A_TIME = 50_000


def run(report: Report, plane: ControlDatabase, connection: Connection, finished: int) -> None:
    """Let so many jobs pass through the queue, the last of them behind some that wait."""
    connection.execute(_QUEUED.format(schema=plane.schema, status="pending", count=WAITING))
    settle(connection)
    _count(report, plane, connection, f"{WAITING:,} jobs in a queue that is new", WAITING)
    for passed in range(0, finished, _AT_A_TIME):
        count = min(_AT_A_TIME, finished - passed)
        connection.execute(_QUEUED.format(schema=plane.schema, status="done", count=count))
        if passed + count == finished:
            # Behind all others, so that the table cannot shrink: pages stay as they do in use.
            waiting = _QUEUED.format(schema=plane.schema, status="pending", count=WAITING)
            connection.execute(waiting)
        connection.execute(_FINISHED.format(schema=plane.schema))
        connection.execute(f"VACUUM (ANALYZE) {plane.schema}.job_queue")
    settle(connection)
    scans = _count(
        report, plane, connection, f"{2 * WAITING:,} jobs after {finished:,} others", 2 * WAITING
    )
    only = bool(scans) and all(scan.startswith("Index Only Scan") for scan in scans)
    report.holds("depth query is index-only", only)


def _count(
    report: Report, plane: ControlDatabase, connection: Connection, what: str, expected: int
) -> list[str]:
    """Print the plan and the best time; returns the plan's scans."""
    query = plane.statement("jobs/job_queue", "depth").as_string(connection)
    lines = [str(row[0]) for row in connection.execute(f"EXPLAIN {query}")]
    scans = [line.split("(")[0].strip(" ->") for line in lines if "Scan" in line]
    times = []
    for _ in range(20):
        started = time.perf_counter()
        row = connection.execute(query).fetchone()
        times.append(time.perf_counter() - started)
        assert row is not None
        assert row[0] == expected
    report.note(f"depth, {what}: {min(times) * 1000:.2f} ms, {'; '.join(scans)}")
    return scans
