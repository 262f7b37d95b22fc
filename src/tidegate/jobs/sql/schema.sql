-- The control plane.
CREATE TABLE {schema}.schema_migrations (
    version    int         PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- One row: who this control plane is, and whether it takes new jobs in.
CREATE TABLE {schema}.control_plane (
    only_row       boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    control_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at     timestamptz NOT NULL DEFAULT now(),
    draining_since timestamptz,
    draining_by    text
);
INSERT INTO {schema}.control_plane DEFAULT VALUES;

-- Every claim takes the next number; destinations let only the highest they know publish.
CREATE SEQUENCE {schema}.fence_tokens AS bigint;

-- What was asked for, and how it ended; kept when the work is over.
CREATE TABLE {schema}.jobs (
    job_id              uuid        PRIMARY KEY,
    project             text        NOT NULL,
    kind                text        NOT NULL,
    name                text        NOT NULL,
    resource            text,
    payload             jsonb       NOT NULL,
    plan                jsonb,
    status              text        NOT NULL DEFAULT 'pending'
                        CHECK (status IN ('pending', 'running', 'done', 'failed', 'cancelled')),
    attempt_id          text,
    attempt_count       int         NOT NULL DEFAULT 0,
    crash_count         int         NOT NULL DEFAULT 0,
    max_attempts        int         NOT NULL DEFAULT 5 CHECK (max_attempts >= 1),
    retry_of            uuid,
    result              jsonb,
    error               text,
    submitted_by        text        NOT NULL,
    submitted_at        timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    finished_at         timestamptz,
    priority            int         NOT NULL DEFAULT 0,
    error_count         int         NOT NULL DEFAULT 0,
    lock_at             text        NOT NULL DEFAULT 'submit'
                        CHECK (lock_at IN ('submit', 'claim', 'never')),
    unique_key          text,
    idempotency_key     text,
    progress            jsonb,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    limits              text[],
    CHECK (lock_at = 'never' OR resource IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX jobs_recent ON {schema}.jobs (project, name, submitted_at DESC);
CREATE UNIQUE INDEX jobs_idempotency ON {schema}.jobs (project, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_submitted ON {schema}.jobs (submitted_at);
-- What was done to a table, by whatever job.
CREATE INDEX jobs_resource ON {schema}.jobs (resource) WHERE resource IS NOT NULL;

-- What is still to be done or being done: narrow, and empty when all is done. `lease_until` is in
-- no index, so that its renewals stay HOT; every row is written again at least once, by its claim,
-- so half of each page is left for that. No foreign key to jobs: both rows are only ever written
-- and deleted together, and the check would cost a third of a COPY of many jobs.
CREATE TABLE {schema}.job_queue (
    job_id        uuid        PRIMARY KEY,
    kind          text        NOT NULL,
    priority      int         NOT NULL DEFAULT 0,
    visible_at    timestamptz NOT NULL DEFAULT now(),
    claimed_at    timestamptz,
    claimed_by    text,
    attempt_id    text,
    fence         bigint,
    lease_until   timestamptz,
    project       text        NOT NULL,
    unique_key    text,
    lock_resource text,
    limits        text[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200);
CREATE INDEX job_queue_ready ON {schema}.job_queue (priority DESC, visible_at, job_id)
    WHERE claimed_at IS NULL;
-- Narrow, so that counting what waits costs less here than in the table.
CREATE INDEX job_queue_waiting ON {schema}.job_queue (visible_at) WHERE claimed_at IS NULL;
-- Few at any time, however many wait: what the sweeper looks through.
CREATE INDEX job_queue_claimed ON {schema}.job_queue (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE UNIQUE INDEX job_queue_unique ON {schema}.job_queue (project, unique_key)
    WHERE unique_key IS NOT NULL;

-- One row for every claim, and how it went.
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

-- The steps a job has done, in order.
CREATE TABLE {schema}.job_actions (
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    position    int         NOT NULL,
    attempt_id  text        NOT NULL,
    action      text        NOT NULL,
    detail      jsonb       NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, position)
);

-- One job per resource; the lock lives and dies with its job.
CREATE TABLE {schema}.table_locks (
    resource    text        PRIMARY KEY,
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    acquired_at timestamptz NOT NULL DEFAULT now(),
    renewed_at  timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX table_locks_job ON {schema}.table_locks (job_id);

-- Processes that may hold attempts; whoever's advisory lock is free is gone.
CREATE TABLE {schema}.workers (
    worker_id   text        PRIMARY KEY,
    host        text        NOT NULL,
    pid         int         NOT NULL,
    version     text        NOT NULL,
    lock_key    bigint      NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    beat_at     timestamptz NOT NULL DEFAULT now(),
    project     text        NOT NULL DEFAULT '',
    command     text        NOT NULL DEFAULT 'tidegate run',
    kinds       text[]      NOT NULL DEFAULT ARRAY[]::text[],
    concurrency int         NOT NULL DEFAULT 1,
    versions    jsonb       NOT NULL DEFAULT jsonb_build_object()
);

-- Who did what to which job; written in the transaction that does it, never changed.
CREATE TABLE {schema}.job_audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY,
    job_id     uuid        NOT NULL,
    attempt_id text,
    event      text        NOT NULL,
    actor      text        NOT NULL,
    detail     text,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, id)
);

-- The highest integer cursors seen, and when: what the horizon of an integer cursor rests on.
CREATE TABLE {schema}.cursor_observations (
    pipeline    text        NOT NULL,
    observed_at timestamptz NOT NULL,
    value       text        NOT NULL,
    PRIMARY KEY (pipeline, observed_at)
);

-- The lakes of a project, and when their tables were last looked at.
CREATE TABLE {schema}.lake_catalogs (
    project      text        NOT NULL,
    catalog      text        NOT NULL,
    refreshed_at timestamptz,
    tried_at     timestamptz NOT NULL DEFAULT now(),
    error        text,
    PRIMARY KEY (project, catalog)
);

-- The table cache: what the tables of a lake were made of when they were last looked at.
CREATE TABLE {schema}.lake_tables (
    project           text        NOT NULL,
    catalog           text        NOT NULL,
    namespace         text        NOT NULL,
    name              text        NOT NULL,
    metadata_location text,
    facts             jsonb,
    read_at           timestamptz,
    seen_at           timestamptz NOT NULL DEFAULT now(),
    error             text,
    orphans           jsonb,
    PRIMARY KEY (project, catalog, namespace, name)
);

-- What remove_orphan_files has found, before the first file is deleted.
CREATE TABLE {schema}.orphan_files (
    job_id      uuid        NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    path        text        NOT NULL,
    bytes       bigint,
    modified_at timestamptz,
    found_at    timestamptz NOT NULL DEFAULT now(),
    kept        text,
    deleted_at  timestamptz,
    PRIMARY KEY (job_id, path)
);

-- Who may use the service; of a token only its hash is kept.
CREATE TABLE {schema}.api_tokens (
    token_id   uuid        PRIMARY KEY,
    project    text        NOT NULL,
    name       text        NOT NULL,
    hash       bytea       NOT NULL UNIQUE,
    scope      text        NOT NULL CHECK (scope IN ('events', 'read', 'submit', 'admin')),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text        NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    used_at    timestamptz
);
CREATE UNIQUE INDEX api_tokens_name ON {schema}.api_tokens (project, name)
    WHERE revoked_at IS NULL;

-- Who changed what through the service or a command, and what became of it.
CREATE TABLE {schema}.access_audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    object  text,
    outcome text        NOT NULL,
    job_id  uuid,
    detail  jsonb
);
CREATE INDEX access_audit_recent ON {schema}.access_audit (project, at DESC);

-- When a project was last swept, and by whom.
CREATE TABLE {schema}.sweeps (
    project  text        PRIMARY KEY,
    swept_at timestamptz NOT NULL DEFAULT now(),
    swept_by text        NOT NULL
);

-- What a job waits for: rows go when the need is met, so that none are left when all is done.
CREATE TABLE {schema}.job_needs (
    job_id uuid NOT NULL REFERENCES {schema}.jobs ON DELETE CASCADE,
    needs  uuid NOT NULL,
    PRIMARY KEY (job_id, needs)
);
CREATE INDEX job_needs_needed ON {schema}.job_needs (needs);

-- How many jobs at a time may use a named resource.
CREATE TABLE {schema}.resource_limits (
    project text NOT NULL,
    name    text NOT NULL,
    places  int  NOT NULL CHECK (places >= 1),
    PRIMARY KEY (project, name)
);

-- The resources of which no place is free; one that nobody has given places has one.
CREATE VIEW {schema}.limits_used_up AS
SELECT u.project, u.name
FROM (SELECT q.project, l.name, count(*) AS used
      FROM {schema}.job_queue q CROSS JOIN LATERAL unnest(q.limits) AS l(name)
      WHERE q.claimed_by IS NOT NULL
      GROUP BY q.project, l.name) u
LEFT JOIN {schema}.resource_limits r ON r.project = u.project AND r.name = u.name
WHERE u.used >= coalesce(r.places, 1);

-- What is to be queued when, and up to which moment that has been seen to.
CREATE TABLE {schema}.schedules (
    project       text        NOT NULL,
    name          text        NOT NULL,
    kind          text        NOT NULL,
    cron          text        NOT NULL,
    timezone      text        NOT NULL,
    catch_up      text        NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
    parameters    jsonb       NOT NULL DEFAULT jsonb_build_object(),
    paused_at     timestamptz,
    paused_by     text,
    paused_reason text,
    seen_until    timestamptz NOT NULL,
    declared_at   timestamptz NOT NULL DEFAULT now(),
    removed_at    timestamptz,
    PRIMARY KEY (project, name)
);

-- Each tick that came to something, written in the transaction that queues its job.
CREATE TABLE {schema}.schedule_ticks (
    project  text        NOT NULL,
    name     text        NOT NULL,
    tick     timestamptz NOT NULL,
    job_id   uuid,
    outcome  text        NOT NULL
             CHECK (outcome IN ('queued', 'coalesced', 'complete', 'disabled', 'failed')),
    detail   text,
    noted_at timestamptz NOT NULL DEFAULT now(),
    noted_by text        NOT NULL,
    PRIMARY KEY (project, name, tick)
);
CREATE INDEX schedule_ticks_noted ON {schema}.schedule_ticks (noted_at);

-- What failed too often of late, and is not queued for a while; no digest: whatever its parameters.
CREATE TABLE {schema}.task_states (
    project           text          NOT NULL,
    name              text          NOT NULL,
    parameters_digest text          NOT NULL DEFAULT '',
    failures          timestamptz[] NOT NULL DEFAULT ARRAY[]::timestamptz[],
    disabled_at       timestamptz,
    disabled_until    timestamptz,
    disabled_by       text,
    enabled_at        timestamptz,
    enabled_by        text,
    PRIMARY KEY (project, name, parameters_digest)
);

-- Tasks without a target that are done, in the transaction that ends their job.
CREATE TABLE {schema}.task_markers (
    project    text        NOT NULL,
    update_id  text        NOT NULL,
    name       text        NOT NULL,
    parameters jsonb       NOT NULL DEFAULT jsonb_build_object(),
    job_id     uuid,
    inserted   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project, update_id)
);
CREATE INDEX task_markers_name ON {schema}.task_markers (project, name, inserted DESC);

-- Jobs that have failed for good and that no notifier has looked at yet.
CREATE TABLE {schema}.job_failures (
    job_id    uuid        PRIMARY KEY REFERENCES {schema}.jobs ON DELETE CASCADE,
    project   text        NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX job_failures_project ON {schema}.job_failures (project, failed_at, job_id);

-- In the transaction that ends the job, whichever statement does: nothing is lost, and a job that
-- does not fail pays for a comparison only.
CREATE FUNCTION {schema}.note_failure() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $note$
BEGIN
    EXECUTE format('INSERT INTO %I.job_failures (job_id, project) VALUES ($1, $2)'
                   ' ON CONFLICT (job_id) DO NOTHING', TG_TABLE_SCHEMA)
    USING NEW.job_id, NEW.project;
    RETURN NULL;
END
$note$;
CREATE TRIGGER jobs_failed AFTER UPDATE OF status ON {schema}.jobs
FOR EACH ROW WHEN (NEW.status = 'failed' AND OLD.status <> 'failed')
EXECUTE FUNCTION {schema}.note_failure();

-- What has failed and not been done since; a task with each of its parameters by itself.
CREATE TABLE {schema}.failing (
    project         text        NOT NULL,
    kind            text        NOT NULL,
    name            text        NOT NULL,
    subject         text        NOT NULL,
    streak_id       uuid        NOT NULL,
    failures        int         NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at  timestamptz NOT NULL,
    last_job_id     uuid        NOT NULL,
    told_at         timestamptz,
    PRIMARY KEY (project, kind, name, subject)
);

-- The outbox: a row for each way in which a notice goes out, until it has arrived or is given up.
CREATE TABLE {schema}.notices (
    notice_id  uuid        NOT NULL,
    channel    text        NOT NULL CHECK (channel IN ('webhook', 'command')),
    project    text        NOT NULL,
    name       text        NOT NULL,
    document   jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tries      int         NOT NULL DEFAULT 0,
    try_at     timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    outcome    text        CHECK (outcome IN ('delivered', 'given up')),
    error      text,
    PRIMARY KEY (notice_id, channel)
);
CREATE INDEX notices_waiting ON {schema}.notices (project, try_at) WHERE ended_at IS NULL;
CREATE INDEX notices_created ON {schema}.notices (created_at);

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

-- Slots: which this project has in its sources, and how far each of their readers has got.
CREATE TABLE {schema}.slots (
    slot       text        PRIMARY KEY,
    project    text        NOT NULL,
    connection text        NOT NULL,
    system     text        NOT NULL,
    database   text        NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX slots_project ON {schema}.slots (project);

-- `lsn` is where the slot may be advanced to as far as this reader is concerned, `read_at` when it
-- last saw all that there was.
CREATE TABLE {schema}.slot_readers (
    slot        text        NOT NULL REFERENCES {schema}.slots ON DELETE CASCADE,
    pipeline    text        NOT NULL,
    publication text        NOT NULL,
    lsn         pg_lsn      NOT NULL,
    read_at     timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, pipeline)
);
CREATE INDEX slot_readers_pipeline ON {schema}.slot_readers (pipeline);
