-- Tasks and their scheduler: what waits for what, limits, schedules and ticks, states, markers.
-- The named resources that a job uses; the queue has them too, since claims go by it alone.
ALTER TABLE {schema}.jobs ADD COLUMN limits text[];
ALTER TABLE {schema}.job_queue ADD COLUMN limits text[];

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
