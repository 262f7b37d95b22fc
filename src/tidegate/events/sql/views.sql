-- Materialized views over the facts, and mv_refresh_log(mv_name, refreshed_at, duration, rows, …).

-- name: read_views
-- How each wanted view stands: what it is, whether it can be refreshed beside readers, its log.
SELECT w.place, c.relkind::text, c.relispopulated,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
               AND i.indpred IS NULL AND i.indexprs IS NULL),
       l.definition, l.changes, l.refreshed_at, l.failed_at, l.rows
FROM unnest(%(schemas)s::text[], %(names)s::text[], %(keys)s::text[])
     WITH ORDINALITY AS w (schema, name, key, place)
LEFT JOIN pg_namespace n ON n.nspname = w.schema
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
LEFT JOIN {log} l ON l.mv_name = w.key
ORDER BY w.place

-- name: get_changes
-- How often facts or dimensions were changed; read before a refresh, it can only be too low.
SELECT coalesce(max(changes), 0) FROM {schema}.event_changes

-- name: note_refresh
-- A view was filled, with all that had been changed up to then.
INSERT INTO {log} AS l (mv_name, refreshed_at, duration, rows, changes, definition)
VALUES (%(view)s, clock_timestamp(), %(seconds)s * interval '1 second', %(rows)s, %(changes)s,
        %(definition)s)
ON CONFLICT (mv_name) DO UPDATE
SET refreshed_at = excluded.refreshed_at, duration = excluded.duration, rows = excluded.rows,
    changes = excluded.changes, definition = excluded.definition, failed_at = NULL, error = NULL

-- name: note_failure
-- A view could not be filled; what it shows is as old as before.
INSERT INTO {log} AS l (mv_name, failed_at, error) VALUES (%(view)s, clock_timestamp(), %(error)s)
ON CONFLICT (mv_name) DO UPDATE SET failed_at = excluded.failed_at, error = excluded.error

-- name: read_rights
-- What a view has besides its definition, and would lose: who may read it, and its comment.
SELECT obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT a.privilege_type || ' ON %%s TO '
                    || CASE WHEN a.grantee = 0 THEN 'PUBLIC'
                       ELSE quote_ident(pg_get_userbyid(a.grantee)) END
                    || CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
             FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s
