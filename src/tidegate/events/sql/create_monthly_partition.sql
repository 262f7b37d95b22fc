-- The part of a table for a month, made beside it and then attached: readers are not queued.
CREATE OR REPLACE FUNCTION {schema}.create_monthly_partition(
    month date, facts regclass DEFAULT {facts}
) RETURNS boolean LANGUAGE plpgsql SET TimeZone = 'UTC' SET search_path = pg_catalog, pg_temp AS
$body$
DECLARE
    first date := date_trunc('month', month::timestamp)::date;
    home text;
    whole text;
    part text;
    other "char";
BEGIN
    SELECT n.nspname, c.relname INTO STRICT home, whole
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = facts;
    part := whole || to_char(first, '_YYYY_MM');
    IF octet_length(part) > 63 THEN
        RAISE EXCEPTION 'the name % is too long for a partition', part;
    END IF;
    IF EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = facts AND c.relname = part) THEN
        RETURN false;
    END IF;
    -- One at a time for a table, in whichever order the months are asked for.
    PERFORM pg_advisory_xact_lock(hashtextextended('tidegate month of ' || facts::oid::text, 0::bigint));
    IF EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = facts AND c.relname = part) THEN
        RETURN false;
    END IF;
    SELECT c.relkind INTO other
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = home AND c.relname = part;
    IF other IS NULL THEN
        EXECUTE format('CREATE TABLE %I.%I (LIKE %I.%I INCLUDING ALL)', home, part, home, whole);
    ELSIF other <> 'r' THEN
        RAISE EXCEPTION '%.% is in the way: it is no table', home, part;
    END IF;
    -- A month that was detached earlier comes back with its rows.
    EXECUTE format('ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                   home, whole, home, part,
                   first::timestamp AT TIME ZONE 'UTC',
                   (first + interval '1 month') AT TIME ZONE 'UTC');
    RETURN true;
END
$body$
