-- What a lake's ledger holds besides. Every statement is safe to repeat.
CREATE TABLE IF NOT EXISTS {schema}.intents (
    target_table     text        NOT NULL,
    update_id        text        NOT NULL,
    attempt_id       text        NOT NULL,
    fence            bigint      NOT NULL,
    base_snapshot_id bigint,
    snapshot_id      bigint,
    move             jsonb,
    repeatable       boolean     NOT NULL DEFAULT false,
    abandoned        boolean     NOT NULL DEFAULT false,
    noted_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (target_table, update_id, attempt_id)
);

CREATE TABLE IF NOT EXISTS {schema}.staged_folders (
    folder       text        PRIMARY KEY,
    attempt_id   text        NOT NULL,
    target_table text        NOT NULL,
    location     text        NOT NULL,
    adopted      boolean     NOT NULL DEFAULT false,
    noted_at     timestamptz NOT NULL DEFAULT now()
);

-- Which sessions of maintenance have committed, over which connection to the server.
CREATE TABLE IF NOT EXISTS {schema}.catalog_moves (
    attempt_id    text        NOT NULL,
    session       text        NOT NULL,
    backend_pid   int         NOT NULL,
    backend_start timestamptz NOT NULL,
    PRIMARY KEY (attempt_id, session, backend_pid, backend_start)
);
