-- The tables of a project's events: what there is of them.

-- name: read_tables
-- Each wanted table that exists: its kind, columns, key and the column it is partitioned by.
SELECT w.place, c.relkind::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum),
       ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum),
       ARRAY(SELECT a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum),
       ARRAY(SELECT a.attname::text
             FROM pg_index i
             CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND i.indisprimary
             ORDER BY k.place),
       (SELECT a.attname::text FROM pg_partitioned_table p
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
        WHERE p.partrelid = c.oid AND p.partstrat = 'r' AND p.partnatts = 1)
FROM unnest(%(schemas)s::text[], %(names)s::text[]) WITH ORDINALITY AS w (schema, name, place)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
UNION ALL
SELECT 0, 's', NULL, NULL, NULL, NULL, n.nspname::text
FROM pg_namespace n WHERE n.nspname = ANY (%(homes)s)
UNION ALL
SELECT 0, 'f', ARRAY[n.nspname::text], ARRAY[p.proname::text], NULL, NULL, p.prosrc
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = ANY (%(homes)s) AND p.proname = ANY (%(functions)s)

-- name: lock_tables
-- One creator at a time, and no long wait for a lock on what others use.
SELECT set_config('lock_timeout', '2s', true),
       pg_advisory_xact_lock(hashtextextended(%(lock)s, 0::bigint))

-- name: insert_changes
-- The row that counts changes of facts and dimensions.
INSERT INTO {schema}.event_changes (id) VALUES (1) ON CONFLICT DO NOTHING
