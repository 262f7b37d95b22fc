-- One row for every attempt at a job that did some work, kept when the job is forgotten. The id
-- begins with the millisecond of `recorded_at`, so that an id alone leads to its partition.
CREATE TABLE {schema}.tasks (
    recorded_at       timestamptz NOT NULL,
    id                uuid        NOT NULL,
    job_id            uuid        NOT NULL,
    attempt_id        text        NOT NULL,
    attempt           int         NOT NULL,
    project           text        NOT NULL,
    kind              text        NOT NULL,
    name              text        NOT NULL,
    parameters        jsonb       NOT NULL,
    parameters_digest text        NOT NULL,
    host              text,
    worker_id         text        NOT NULL,
    status            text        NOT NULL
                      CHECK (status IN ('running', 'done', 'failed', 'cancelled', 'lost',
                                        'given back')),
    submitted_at      timestamptz NOT NULL,
    started_at        timestamptz NOT NULL,
    finished_at       timestamptz,
    rows              bigint,
    bytes             bigint,
    metrics           jsonb,
    error             text,
    traceback         text,
    PRIMARY KEY (recorded_at, id)
) PARTITION BY RANGE (recorded_at);
CREATE INDEX tasks_name ON {schema}.tasks (project, name, recorded_at DESC, id DESC);
CREATE INDEX tasks_status ON {schema}.tasks (project, status, recorded_at DESC, id DESC);
-- How long the runs of one thing took, and how often they failed.
CREATE INDEX tasks_runs ON {schema}.tasks (project, kind, name, status, recorded_at DESC);
-- Few: what is at work now, and what went wrong.
CREATE INDEX tasks_not_done ON {schema}.tasks (project, name, status, recorded_at DESC, id DESC)
    WHERE status <> 'done';
CREATE INDEX tasks_job ON {schema}.tasks (job_id);

-- What happened to a task, and when; `recorded_at` is the task's.
CREATE TABLE {schema}.task_events (
    recorded_at timestamptz NOT NULL,
    task_id     uuid        NOT NULL,
    at          timestamptz NOT NULL,
    event       text        NOT NULL
                CHECK (event IN ('pending', 'started', 'progress', 'done', 'failed', 'retried',
                                 'cancelled', 'lost')),
    detail      jsonb,
    PRIMARY KEY (recorded_at, task_id, at, event)
) PARTITION BY RANGE (recorded_at);

-- What a task was called with, to find it by; `recorded_at` is the task's. No more of a value is in
-- the index than fits there.
CREATE TABLE {schema}.task_parameters (
    recorded_at timestamptz NOT NULL,
    task_id     uuid        NOT NULL,
    project     text        NOT NULL,
    task        text        NOT NULL,
    name        text        NOT NULL,
    value       text        NOT NULL,
    PRIMARY KEY (recorded_at, task_id, name)
) PARTITION BY RANGE (recorded_at);
CREATE INDEX task_parameters_task ON {schema}.task_parameters
    (project, task, name, left(value, 200), recorded_at DESC, task_id DESC);
CREATE INDEX task_parameters_value ON {schema}.task_parameters
    (project, name, left(value, 200), recorded_at DESC, task_id DESC);
