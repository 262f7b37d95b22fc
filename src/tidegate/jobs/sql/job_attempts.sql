-- job_attempts(attempt_id, job_id, worker_id, fence, started_at, finished_at, outcome, error)

-- name: list_attempts
-- The attempts at a job, in order.
SELECT attempt_id, worker_id, fence, started_at, finished_at, outcome, error
FROM {schema}.job_attempts
WHERE job_id = %(job_id)s
ORDER BY started_at, fence

-- name: count_died
-- Attempts at each resource that went wrong since its orphans were last removed, and when that was.
WITH removed AS (
    SELECT j.resource, max(a.finished_at) AS at
    FROM {schema}.jobs j JOIN {schema}.job_actions a USING (job_id)
    WHERE j.kind = 'maintenance' AND j.resource IS NOT NULL AND j.resource = ANY(%(resources)s)
      AND a.action = 'remove_orphan_files' AND a.detail ->> 'status' = 'done'
    GROUP BY j.resource
), died AS (
    SELECT j.resource, t.finished_at
    FROM {schema}.job_attempts t JOIN {schema}.jobs j USING (job_id)
    WHERE t.outcome IN ('lost', 'error', 'failed')
      AND j.resource IS NOT NULL AND j.resource = ANY(%(resources)s)
)
SELECT r.resource, removed.at,
       count(died.finished_at) FILTER (WHERE removed.at IS NULL OR died.finished_at > removed.at)
FROM unnest(%(resources)s::text[]) AS r (resource)
LEFT JOIN removed USING (resource)
LEFT JOIN died USING (resource)
GROUP BY r.resource, removed.at
