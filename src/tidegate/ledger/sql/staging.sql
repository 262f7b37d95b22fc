-- Staging tables have no row anywhere: their names carry the control plane and the attempt.

-- name: list_staging
-- Staging tables whose name starts with a prefix.
SELECT c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
ORDER BY c.relname
