-- What a state file is made of and loaded into; its tables are listed in control/state_tables.py.

-- name: lock_loading
-- One load of a project at a time.
SELECT pg_advisory_xact_lock(hashtextextended('tidegate state:' || %(place)s, 0::bigint))

-- name: has_jobs_of
-- Whether a project has any job, ended or not.
SELECT EXISTS (SELECT FROM {schema}.jobs WHERE project = %(project)s)

-- name: list_columns
-- The columns of a table that can be written, those of its primary key first in their order; no
-- row when there is no such table.
SELECT a.attname, k.place IS NOT NULL
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN LATERAL (
    SELECT o AS place FROM unnest(i.indkey::int[]) WITH ORDINALITY AS u(attnum, o)
    WHERE u.attnum = a.attnum
) k ON true
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
  AND a.attidentity = '' AND a.attgenerated = ''
ORDER BY k.place NULLS LAST, a.attnum

-- name: lock_loaded
-- What the jobs of a project had locked when they were submitted, they lock again.
INSERT INTO {schema}.table_locks (resource, job_id)
SELECT resource, job_id FROM {schema}.jobs WHERE project = %(project)s AND lock_at = 'submit'

-- name: audit_loaded
-- Where the jobs of a project came from.
INSERT INTO {schema}.job_audit (job_id, event, actor, detail)
SELECT job_id, 'loaded', %(actor)s, %(detail)s FROM {schema}.jobs WHERE project = %(project)s

-- name: take_identity
-- Go on as the control plane that wrote a file; not when anybody may know this one by its own.
UPDATE {schema}.control_plane SET control_id = %(control_id)s
WHERE NOT EXISTS (SELECT FROM {schema}.jobs) AND NOT EXISTS (SELECT FROM {schema}.workers)
  AND pg_sequence_last_value(%(sequence)s::regclass) IS NULL
