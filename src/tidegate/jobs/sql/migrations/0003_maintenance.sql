-- Maintenance of lakes, and the service: table cache, orphans, tokens, audit, sweeps.
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
    scope      text        NOT NULL CHECK (scope IN ('read', 'submit', 'admin')),
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

-- What was done to a table, by whatever job.
CREATE INDEX jobs_resource ON {schema}.jobs (resource) WHERE resource IS NOT NULL;
