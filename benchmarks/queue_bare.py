"""The floor: the fewest statements that claim and finish a job under a fence, in a bare loop."""

from __future__ import annotations

import uuid

import psycopg

from tidegate.postgres.connection import Connection

TABLES = """
CREATE TABLE jobs (
    job_id uuid PRIMARY KEY, kind text NOT NULL, payload jsonb NOT NULL, status text NOT NULL,
    attempt_id text, finished_at timestamptz
) WITH (fillfactor = 80);
CREATE TABLE job_queue (
    job_id uuid PRIMARY KEY, kind text NOT NULL, priority int NOT NULL DEFAULT 0,
    visible_at timestamptz NOT NULL DEFAULT now(), claimed_at timestamptz, claimed_by text,
    attempt_id text, fence bigint, lease_until timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX job_queue_ready ON job_queue (priority DESC, visible_at, job_id)
    WHERE claimed_at IS NULL;
CREATE SEQUENCE fences;
"""
CLAIM = """
WITH picked AS (
    SELECT job_id FROM job_queue
    WHERE claimed_at IS NULL AND visible_at <= now() AND kind = ANY(%s)
    ORDER BY priority DESC, visible_at, job_id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE job_queue q
SET claimed_at = now(), claimed_by = %s, attempt_id = gen_random_uuid()::text,
    fence = nextval('fences'), lease_until = now() + interval '60 seconds'
FROM picked p WHERE q.job_id = p.job_id
RETURNING q.job_id, q.attempt_id, q.fence, extract(epoch FROM q.claimed_at)::float8
"""
FINISH = """
WITH ended AS (
    DELETE FROM job_queue q USING unnest(%s::uuid[], %s::text[]) AS m(job_id, attempt_id)
    WHERE q.job_id = m.job_id AND q.attempt_id = m.attempt_id
    RETURNING q.job_id, q.attempt_id
)
UPDATE jobs j SET status = 'done', attempt_id = e.attempt_id, finished_at = now()
FROM ended e WHERE j.job_id = e.job_id RETURNING j.job_id
"""
SPAN = """
SELECT count(*), extract(epoch FROM max(finished_at))::float8 FROM jobs WHERE status = 'done'
"""


class BareQueue:
    """One session, prepared statements, a commit for each statement."""

    def __init__(self, conninfo: str, connection: Connection, batch: int) -> None:
        self.connection = connection
        self._batch = batch
        self._conninfo = conninfo
        self._first_claim = 0.0

    def empty(self) -> None:
        self.connection.execute("TRUNCATE jobs, job_queue")

    def enqueue(self, count: int) -> None:
        """Both tables by COPY, in one transaction."""
        ids = [uuid.uuid4() for _ in range(count)]
        with self.connection.transaction(), self.connection.cursor() as cursor:
            with cursor.copy("COPY jobs (job_id, kind, payload, status) FROM STDIN") as rows:
                for job_id in ids:
                    rows.write_row((job_id, "noop", "{}", "pending"))
            with cursor.copy("COPY job_queue (job_id, kind) FROM STDIN") as rows:
                for job_id in ids:
                    rows.write_row((job_id, "noop"))

    def work(self) -> None:
        self._first_claim = 0.0
        with psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=0) as session:
            while claims := session.execute(CLAIM, (["noop"], self._batch, "bare")).fetchall():
                self._first_claim = self._first_claim or claims[0][3]
                job_ids, attempts = [row[0] for row in claims], [row[1] for row in claims]
                ended = session.execute(FINISH, (job_ids, attempts)).fetchall()
                assert len(ended) == len(claims)

    def span(self, count: int) -> float:
        row = self.connection.execute(SPAN).fetchone()
        assert row is not None
        if row[0] != count:
            raise RuntimeError(f"{row[0]} of {count} jobs are done")
        return float(row[1]) - self._first_claim
