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
