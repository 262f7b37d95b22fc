-- job_attempts(attempt_id, job_id, worker_id, fence, started_at, finished_at, outcome, error)

-- name: list_attempts
-- The attempts at a job, in order.
SELECT attempt_id, worker_id, fence, started_at, finished_at, outcome, error
FROM {schema}.job_attempts
WHERE job_id = %(job_id)s
ORDER BY started_at, fence
