-- Jobs, their queue, attempts, locks, workers and audit.
CREATE TABLE {schema}.control_plane (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    control_id uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO {schema}.control_plane DEFAULT VALUES;

CREATE SEQUENCE {schema}.fence_tokens AS bigint;

CREATE TABLE {schema}.jobs (
    job_id        uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    project       text        NOT NULL,
    kind          text        NOT NULL,
    name          text        NOT NULL,
    resource      text        NOT NULL,
    payload       jsonb       NOT NULL,
    plan          jsonb,
    status        text        NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'running', 'done', 'failed', 'cancelled')),
    attempt_id    text,
    attempt_count int         NOT NULL DEFAULT 0,
    crash_count   int         NOT NULL DEFAULT 0,
    max_attempts  int         NOT NULL DEFAULT 5 CHECK (max_attempts >= 1),
    retry_of      uuid,
    result        jsonb,
    error         text,
    submitted_by  text        NOT NULL,
    submitted_at  timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    finished_at   timestamptz
);
CREATE INDEX jobs_recent ON {schema}.jobs (project, name, submitted_at DESC);

CREATE TABLE {schema}.job_queue (
    job_id      uuid        PRIMARY KEY REFERENCES {schema}.jobs ON DELETE CASCADE,
    kind        text        NOT NULL,
    priority    int         NOT NULL DEFAULT 0,
    visible_at  timestamptz NOT NULL DEFAULT now(),
    claimed_at  timestamptz,
    claimed_by  text,
    attempt_id  text,
    fence       bigint,
    lease_until timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX job_queue_ready ON {schema}.job_queue (priority DESC, visible_at)
    WHERE claimed_at IS NULL;

CREATE TABLE {schema}.job_attempts (
    attempt_id  text        PRIMARY KEY,
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    worker_id   text        NOT NULL,
    fence       bigint      NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    outcome     text,
    error       text
);
CREATE INDEX job_attempts_job ON {schema}.job_attempts (job_id);

CREATE TABLE {schema}.job_actions (
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    position    int         NOT NULL,
    attempt_id  text        NOT NULL,
    action      text        NOT NULL,
    detail      jsonb       NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, position)
);

CREATE TABLE {schema}.table_locks (
    resource    text        PRIMARY KEY,
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    acquired_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {schema}.workers (
    worker_id  text        PRIMARY KEY,
    host       text        NOT NULL,
    pid        int         NOT NULL,
    version    text        NOT NULL,
    lock_key   bigint      NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {schema}.job_audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     uuid        NOT NULL,
    attempt_id text,
    event      text        NOT NULL,
    actor      text        NOT NULL,
    detail     text,
    at         timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX job_audit_job ON {schema}.job_audit (job_id, id);

CREATE TABLE {schema}.cursor_observations (
    pipeline    text        NOT NULL,
    observed_at timestamptz NOT NULL,
    value       text        NOT NULL,
    PRIMARY KEY (pipeline, observed_at)
);
