-- Notices: what failed, what people were told of it, and what they are still to be told.
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
