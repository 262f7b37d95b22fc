-- table_locks(resource, job_id, acquired_at): one job per destination table.

-- name: get_holder
-- The job that holds a resource, the process that works on it, and since when it does; a job that
-- nobody works on has held it since it was submitted.
SELECT j.job_id, j.name, j.status, q.attempt_id, w.host, w.pid,
       coalesce(q.claimed_at, l.acquired_at), j.payload
FROM {schema}.table_locks l
JOIN {schema}.jobs j USING (job_id)
LEFT JOIN {schema}.job_queue q USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
WHERE l.resource = %(resource)s
