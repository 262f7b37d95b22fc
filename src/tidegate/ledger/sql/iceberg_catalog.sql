-- The embedded catalog: Iceberg's own tables, and the fence in front of every commit.
CREATE TABLE IF NOT EXISTS {schema}.iceberg_tables (
    catalog_name               varchar(255)  NOT NULL,
    table_namespace            varchar(255)  NOT NULL,
    table_name                 varchar(255)  NOT NULL,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);

CREATE TABLE IF NOT EXISTS {schema}.iceberg_namespace_properties (
    catalog_name   varchar(255) NOT NULL,
    namespace      varchar(255) NOT NULL,
    property_key   varchar(255),
    property_value varchar(1000),
    PRIMARY KEY (catalog_name, namespace, property_key)
);

-- A session that names an attempt commits only while that attempt holds its table. FOR SHARE
-- makes whoever raises the fence wait for a commit that is under way; nothing else is held.
CREATE OR REPLACE FUNCTION {schema}.refuse_stale_attempt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    attempt text := nullif(current_setting('tidegate.attempt', true), '');
    maintainer text := nullif(current_setting('tidegate.maintains', true), '');
BEGIN
    IF attempt IS NOT NULL THEN
        SET LOCAL lock_timeout = '10s';
        PERFORM FROM {schema}.fences WHERE attempt_id = attempt FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'attempt % was replaced by another', attempt
                USING ERRCODE = 'TG001', HINT = 'the newer attempt carries on';
        END IF;
        IF maintainer IS NOT NULL THEN
            INSERT INTO {schema}.catalog_moves
            SELECT attempt, maintainer, pid, backend_start FROM pg_stat_activity
            WHERE pid = pg_backend_pid()
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER refuse_stale_attempt
BEFORE UPDATE OF metadata_location ON {schema}.iceberg_tables
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_stale_attempt();

-- Iceberg sends a commit again when its connection is lost. If the first one has got through, the
-- second finds that the table has moved on, and Iceberg takes that for a race that it has lost: it
-- removes the files of the commit, or puts main back to it. An error makes it leave all as it is.
-- A session of maintenance may have worked for hours, so it may lose a race and try again, unless
-- it has committed over another connection: what it sends now could be what got through there. Of
-- an attempt that was replaced that is not known any more.
CREATE OR REPLACE FUNCTION {schema}.refuse_lost_race() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    attempt text := nullif(current_setting('tidegate.attempt', true), '');
    maintainer text := nullif(current_setting('tidegate.maintains', true), '');
BEGIN
    IF attempt IS NULL OR EXISTS (SELECT FROM moved) THEN
        RETURN NULL;
    END IF;
    IF maintainer IS NULL
       OR NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.attempt_id = attempt)
       OR EXISTS (
        SELECT FROM {schema}.catalog_moves m
        WHERE m.attempt_id = attempt AND m.session = maintainer
          AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
                          AND a.pid = m.backend_pid AND a.backend_start = m.backend_start)
    ) THEN
        RAISE EXCEPTION 'another commit came first' USING ERRCODE = 'TG002';
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER refuse_lost_race
AFTER UPDATE ON {schema}.iceberg_tables REFERENCING NEW TABLE AS moved
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_lost_race();
