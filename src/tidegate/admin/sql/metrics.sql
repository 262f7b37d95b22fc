-- jobs, job_queue and lake_catalogs in numbers, for those who watch.

-- name: count_jobs
-- How many jobs of a project there are, by kind and status.
SELECT kind, status, count(*) FROM {schema}.jobs
WHERE project = %(project)s
GROUP BY kind, status

-- name: measure_queue
-- For each kind: how many jobs could start now, wait for later and run, how many leases are over,
-- and how long the oldest that could start has waited.
SELECT kind,
       count(*) FILTER (WHERE claimed_at IS NULL AND visible_at <= now()),
       count(*) FILTER (WHERE claimed_at IS NULL AND visible_at > now()),
       count(*) FILTER (WHERE claimed_at IS NOT NULL),
       count(*) FILTER (WHERE lease_until < now()),
       coalesce(extract(epoch FROM now() - min(visible_at)
           FILTER (WHERE claimed_at IS NULL AND visible_at <= now())), 0)::float8
FROM {schema}.job_queue
WHERE project = %(project)s
GROUP BY kind
