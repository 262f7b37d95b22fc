-- What keeps dead rows of the control database from being vacuumed.

-- name: list_holders
-- Whoever holds an old xmin or xid that counts for this database, oldest first.
-- The rules are those of ComputeXidHorizons (procarray.c, the same in PostgreSQL 14 to 18). For
-- ordinary tables count: sessions and prepared transactions of this database, standbys that send
-- feedback without a slot, and the xmin of slots. A slot's catalog_xmin counts for the catalogs
-- alone. A lazy vacuum does not count, nor a walsender that decodes, since its slot does.
SELECT kind, only_catalogs, pid, role, application, client, state, name, since,
       extract(epoch FROM clock_timestamp() - since)::float8, transactions
FROM (
    SELECT CASE WHEN a.datid IS NULL THEN 'standby' ELSE 'session' END AS kind,
           false AS only_catalogs, a.pid, a.usename::text AS role,
           nullif(a.application_name, '') AS application, host(a.client_addr) AS client,
           CASE WHEN a.backend_type = 'client backend' THEN a.state ELSE a.backend_type END
               AS state,
           NULL::text AS name, CASE WHEN a.datid IS NOT NULL THEN a.xact_start END AS since,
           greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions,
           -- The snapshots of others go back to the oldest xid: its owner is the one to name.
           coalesce(age(a.backend_xid) >= coalesce(age(a.backend_xmin), 0), false) AS is_cause
    FROM pg_stat_activity a
    LEFT JOIN pg_stat_replication r ON r.pid = a.pid
    WHERE a.pid <> pg_backend_pid()
      AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
      AND (a.datname = current_database() OR (a.datid IS NULL AND r.pid IS NOT NULL))
      AND a.backend_type IS DISTINCT FROM 'parallel worker'
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
      AND NOT EXISTS (SELECT FROM pg_replication_slots s
                      WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
    UNION ALL
    SELECT 'prepared', false, NULL, p.owner::text, NULL, NULL, NULL, p.gid, p.prepared,
           age(p.transaction), true
    FROM pg_prepared_xacts p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'slot', h.only_catalogs, s.active_pid, NULL, NULL, NULL,
           CASE WHEN s.active THEN 'active' ELSE 'inactive' END, s.slot_name::text,
           -- This column is there since PostgreSQL 17.
           (to_jsonb(s) ->> 'inactive_since')::timestamptz, age(h.held), false
    FROM pg_replication_slots s
    CROSS JOIN LATERAL (VALUES (s.xmin, false), (s.catalog_xmin, true)) h (held, only_catalogs)
    WHERE h.held IS NOT NULL AND s.wal_status IS DISTINCT FROM 'lost'
) holders
ORDER BY transactions DESC, is_cause DESC, since NULLS LAST, pid

-- name: see_all_sessions
-- Whether this role is shown since when the transactions of others are open.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')

-- name: count_queue_rows
-- Dead and live rows of the job queue, as the statistics estimate them.
SELECT n_dead_tup, n_live_tup
FROM pg_stat_user_tables
WHERE schemaname = %(schema)s AND relname = 'job_queue'

-- name: get_job_of_attempt
-- The job that an attempt works on.
SELECT j.job_id, j.name
FROM {schema}.job_attempts a
JOIN {schema}.jobs j USING (job_id)
WHERE a.attempt_id = %(attempt_id)s
