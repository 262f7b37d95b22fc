"""The depth query with a long history: it must read the queue's index and nothing else."""

from __future__ import annotations

import time

from benchmarks.queue_side import settle
from benchmarks.report import Report
from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection

_HISTORY = """
INSERT INTO {schema}.jobs
    (job_id, project, kind, name, payload, status, lock_at, submitted_by, finished_at)
SELECT gen_random_uuid(), 'bench', 'noop', 'noop', '{{}}', 'done', 'never', 'bench', now()
FROM generate_series(1, {count})
"""
_WAITING = """
WITH waiting AS (
    INSERT INTO {schema}.jobs (job_id, project, kind, name, payload, lock_at, submitted_by)
    SELECT gen_random_uuid(), 'bench', 'noop', 'noop', '{{}}', 'never', 'bench'
    FROM generate_series(1, {count}) RETURNING job_id
)
INSERT INTO {schema}.job_queue (job_id, kind, project) SELECT job_id, 'noop', 'bench' FROM waiting
"""
WAITING = 1_000


def run(report: Report, plane: ControlPlane, connection: Connection, finished: int) -> None:
    connection.execute(_HISTORY.format(schema=plane.schema, count=finished))
    connection.execute(_WAITING.format(schema=plane.schema, count=WAITING))
    settle(connection)
    query = plane.statement("job_queue", "depth").as_string(connection)
    lines = [str(row[0]) for row in connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {query}")]
    scans = [line.split("(")[0].strip(" ->") for line in lines if "Scan" in line]
    times = []
    for _ in range(20):
        started = time.perf_counter()
        row = connection.execute(query).fetchone()
        times.append(time.perf_counter() - started)
        assert row is not None
        assert row[0] == WAITING
    report.note(
        f"depth with {finished:,} finished and {WAITING:,} waiting jobs: "
        f"{min(times) * 1000:.2f} ms, {'; '.join(scans)}"
    )
    only = [scan.startswith("Index Only Scan") for scan in scans]
    report.holds("depth query is index-only", all(only) and bool(only))
