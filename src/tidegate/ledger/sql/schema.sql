-- The ledger of one destination database. Every statement is safe to repeat.
CREATE TABLE IF NOT EXISTS {schema}.etl_state (
    pipeline_name  text        NOT NULL,
    table_name     text        NOT NULL,
    high_watermark text,
    cursor_type    text,
    generation     bigint      NOT NULL DEFAULT 0,
    version        bigint      NOT NULL DEFAULT 0,
    rows_synced    bigint      NOT NULL DEFAULT 0,
    position       jsonb,
    update_id      text,
    fence          bigint,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    declaration    jsonb,
    PRIMARY KEY (pipeline_name, table_name)
);
ALTER TABLE {schema}.etl_state ADD COLUMN IF NOT EXISTS declaration jsonb;

CREATE TABLE IF NOT EXISTS {schema}.watermark_log (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_name  text        NOT NULL,
    table_name     text        NOT NULL,
    generation     bigint      NOT NULL,
    version        bigint      NOT NULL,
    old_watermark  text,
    new_watermark  text,
    rows           bigint,
    update_id      text,
    attempt_id     text,
    fence          bigint,
    moved_by       text        NOT NULL,
    reason         text        NOT NULL,
    moved_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS watermark_log_pipeline
    ON {schema}.watermark_log (pipeline_name, table_name, id);
CREATE INDEX IF NOT EXISTS watermark_log_update_id
    ON {schema}.watermark_log (update_id);

CREATE TABLE IF NOT EXISTS {schema}.fences (
    resource   text   PRIMARY KEY,
    control_id uuid   NOT NULL,
    token      bigint NOT NULL,
    attempt_id text   NOT NULL
);
