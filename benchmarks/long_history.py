"""A long history, written by SQL: four months of runs of a hundred names."""

from __future__ import annotations

from datetime import datetime, timedelta

from psycopg import sql

from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.history.writer import TABLES, TaskMonths
from tidegate.postgres.connection import Connection

NAMES = 100
EVENTS_A_RUN = 4
DAYS = 100

# Run n of N: evenly over the days, a name each in turn; every 53rd failed, every 997th was lost.
_RUNS = """
CREATE TEMPORARY TABLE runs AS
SELECT date_trunc('milliseconds', m.at) AS recorded_at,
       (lpad(to_hex(floor(extract(epoch FROM m.at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid AS id,
       (lpad(to_hex(floor(extract(epoch FROM m.at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5('job ' || n), 1, 3) || '8' || substr(md5('job ' || n), 4, 15))::uuid
       AS job_id, md5(n::text) AS attempt_id,
       'name_' || n %% {names} AS name, n, m.at AS started_at,
       CASE WHEN n %% 997 = 5 THEN 'lost' WHEN n %% 53 = 7 THEN 'failed' ELSE 'done' END
       AS status,
       m.at + interval '1 second' * (1 + n %% 7) AS finished_at
FROM generate_series(1, %(runs)s) n
CROSS JOIN LATERAL (SELECT %(now)s - (%(runs)s - n) * %(apart)s::interval - interval '1 minute'
                    AS at) m
"""
_TASKS = """
INSERT INTO {schema}.tasks
    (recorded_at, id, job_id, attempt_id, attempt, project, kind, name, parameters,
     parameters_digest, host, worker_id, status, submitted_at, started_at, finished_at, rows,
     metrics, error)
SELECT recorded_at, id, job_id, attempt_id, 1, 'shop', 'sync', name,
       jsonb_build_object('day', (started_at AT TIME ZONE 'UTC')::date, 'full_refresh', false),
       'd', 'h', 'w', status,
       started_at, started_at, finished_at, n, jsonb_build_object('loads', 1),
       CASE WHEN status = 'failed' THEN 'it broke' END
FROM runs
"""
_EVENTS = """
INSERT INTO {schema}.task_events (recorded_at, task_id, at, event)
SELECT recorded_at, id, e.at, e.event
FROM runs CROSS JOIN LATERAL (
    VALUES (started_at - interval '1 second', 'pending'), (started_at, 'started'),
           (started_at + interval '0.5 seconds', 'progress'), (finished_at, status)) e(at, event)
"""
_PARAMETERS = """
INSERT INTO {schema}.task_parameters (recorded_at, task_id, project, task, name, value)
SELECT r.recorded_at, r.id, 'shop', r.name, p.name, p.value
FROM runs r CROSS JOIN LATERAL (
    VALUES ('day', (r.started_at AT TIME ZONE 'UTC')::date::text), ('full_refresh', 'false')
) p(name, value)
"""


def fill_history(
    connection: Connection, plane: ControlDatabase, *, events: int, now: datetime
) -> int:
    """So many events of the project shop, up to a minute ago; returns how many runs that are."""
    runs = events // EVENTS_A_RUN
    months = TaskMonths(plane)
    for day in range(0, DAYS + 20, 20):
        months.make(connection, now - timedelta(days=day))
    schema = sql.Identifier(plane.schema)
    connection.execute(
        sql.SQL(_RUNS).format(names=sql.Literal(NAMES)),
        {"runs": runs, "now": now, "apart": timedelta(days=DAYS) / runs},
    )
    for statement in (_TASKS, _EVENTS, _PARAMETERS):
        connection.execute(sql.SQL(statement).format(schema=schema))
    connection.execute("DROP TABLE runs")
    for table in TABLES:
        connection.execute(sql.SQL("VACUUM ANALYZE {}.{}").format(schema, sql.Identifier(table)))
    return runs
