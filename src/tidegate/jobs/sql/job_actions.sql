-- job_actions(job_id, position, attempt_id, action, detail, finished_at): what a job has done.

-- name: record_action
-- One more step of the current attempt; no row when the attempt is stale.
INSERT INTO {schema}.job_actions (job_id, position, attempt_id, action, detail)
SELECT j.job_id,
       1 + coalesce((SELECT max(position) FROM {schema}.job_actions a WHERE a.job_id = j.job_id), 0),
       j.attempt_id, %(action)s, %(detail)s
FROM {schema}.jobs j
WHERE j.job_id = %(job_id)s AND j.attempt_id = %(attempt_id)s AND j.status = 'running'
RETURNING position

-- name: list_actions
-- The steps of a job, in order.
SELECT position, attempt_id, action, detail, finished_at FROM {schema}.job_actions
WHERE job_id = %(job_id)s ORDER BY position

-- name: list_actions_after
-- The steps of a job beyond those that a watcher has seen.
SELECT position, attempt_id, action, detail, finished_at FROM {schema}.job_actions
WHERE job_id = %(job_id)s AND position > %(position)s ORDER BY position
