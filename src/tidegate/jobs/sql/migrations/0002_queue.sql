-- The whole queue: priorities, unique jobs, locks at claim, cancel, drain, what workers can do.
ALTER TABLE {schema}.control_plane
    ADD COLUMN draining_since timestamptz,
    ADD COLUMN draining_by    text;

ALTER TABLE {schema}.jobs
    ALTER COLUMN resource DROP NOT NULL,
    ALTER COLUMN job_id DROP DEFAULT,
    ADD COLUMN priority            int         NOT NULL DEFAULT 0,
    ADD COLUMN error_count         int         NOT NULL DEFAULT 0,
    ADD COLUMN lock_at             text        NOT NULL DEFAULT 'submit'
               CHECK (lock_at IN ('submit', 'claim', 'never')),
    ADD COLUMN unique_key          text,
    ADD COLUMN idempotency_key     text,
    ADD COLUMN progress            jsonb,
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN cancel_requested_by text,
    ADD CHECK (lock_at = 'never' OR resource IS NOT NULL),
    SET (fillfactor = 80);
CREATE UNIQUE INDEX jobs_idempotency ON {schema}.jobs (project, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_submitted ON {schema}.jobs (submitted_at);

-- Both rows are only ever written and deleted together, and the check would cost a third of a COPY.
ALTER TABLE {schema}.job_queue
    DROP CONSTRAINT job_queue_job_id_fkey,
    ADD COLUMN project       text NOT NULL DEFAULT '',
    ADD COLUMN unique_key    text,
    ADD COLUMN lock_resource text,
    SET (fillfactor = 50);
UPDATE {schema}.job_queue q SET project = j.project FROM {schema}.jobs j WHERE j.job_id = q.job_id;
UPDATE {schema}.jobs j SET priority = q.priority FROM {schema}.job_queue q
WHERE q.job_id = j.job_id AND q.priority <> 0;
ALTER TABLE {schema}.job_queue ALTER COLUMN project DROP DEFAULT;
DROP INDEX {schema}.job_queue_ready;
CREATE INDEX job_queue_ready ON {schema}.job_queue (priority DESC, visible_at, job_id)
    WHERE claimed_at IS NULL;
CREATE INDEX job_queue_waiting ON {schema}.job_queue (visible_at) WHERE claimed_at IS NULL;
CREATE INDEX job_queue_claimed ON {schema}.job_queue (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE UNIQUE INDEX job_queue_unique ON {schema}.job_queue (project, unique_key)
    WHERE unique_key IS NOT NULL;

ALTER TABLE {schema}.table_locks ADD COLUMN renewed_at timestamptz NOT NULL DEFAULT now();
CREATE UNIQUE INDEX table_locks_job ON {schema}.table_locks (job_id);

ALTER TABLE {schema}.workers
    ADD COLUMN project     text   NOT NULL DEFAULT '',
    ADD COLUMN command     text   NOT NULL DEFAULT 'tidegate run',
    ADD COLUMN kinds       text[] NOT NULL DEFAULT ARRAY[]::text[],
    ADD COLUMN concurrency int    NOT NULL DEFAULT 1,
    ADD COLUMN versions    jsonb  NOT NULL DEFAULT jsonb_build_object();

DROP INDEX {schema}.job_audit_job;
ALTER TABLE {schema}.job_audit
    DROP CONSTRAINT job_audit_pkey,
    ADD PRIMARY KEY (job_id, id);
