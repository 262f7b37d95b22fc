-- jobs and job_actions of maintenance: what was done to a table, and when last.

-- name: last_actions
-- Of each action the newest run at a table, and how many have failed since one went well: as they
-- were recorded, or, where an ended job never came to an action, as that job ended. Dry runs and
-- what was skipped are none; to have been cancelled counts as a failure, or it would start anew.
WITH recent AS (
    SELECT j.job_id, j.status, j.error, j.finished_at, j.payload -> 'order' AS steps
    FROM {schema}.jobs j
    WHERE j.project = %(project)s AND j.kind = 'maintenance' AND j.name = %(name)s
      AND j.lock_at <> 'never'
    ORDER BY j.submitted_at DESC
    LIMIT 200
), runs AS (
    SELECT a.action, a.finished_at AS at, a.detail ->> 'status' AS status,
           a.detail ->> 'error' AS error
    FROM recent r JOIN {schema}.job_actions a USING (job_id)
    UNION ALL
    SELECT s.action, r.finished_at, r.status, coalesce(r.error, r.status)
    FROM recent r, jsonb_object_keys(r.steps) AS s(action)
    WHERE r.status IN ('failed', 'cancelled') AND jsonb_typeof(r.steps) = 'object'
      AND NOT EXISTS (SELECT FROM {schema}.job_actions a
                      WHERE a.job_id = r.job_id AND a.action = s.action)
), counted AS (
    SELECT action, at, CASE status WHEN 'done' THEN 'done' ELSE 'failed' END AS status, error,
           count(*) FILTER (WHERE status = 'done') OVER (PARTITION BY action ORDER BY at DESC)
               AS went_well
    FROM runs WHERE at IS NOT NULL AND status IN ('done', 'failed', 'cancelled')
)
SELECT DISTINCT ON (action) action, at, status, error,
       (SELECT count(*)::int FROM counted f WHERE f.action = c.action AND f.went_well = 0)
FROM counted c
ORDER BY action, at DESC

-- name: list_history
-- Maintenance of one table, the newest first, each with its steps; from before a job on.
SELECT j.job_id, j.status, j.submitted_by, j.submitted_at, j.started_at, j.finished_at, j.error,
       j.payload, j.result,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'position', a.position, 'action', a.action, 'attempt_id', a.attempt_id,
                   'finished_at', a.finished_at, 'detail', a.detail) ORDER BY a.position),
                '[]'::jsonb)
        FROM {schema}.job_actions a WHERE a.job_id = j.job_id)
FROM {schema}.jobs j
WHERE j.project = %(project)s AND j.kind = 'maintenance' AND j.name = %(name)s
  AND (%(before)s::uuid IS NULL OR (j.submitted_at, j.job_id)
       < (SELECT b.submitted_at, b.job_id FROM {schema}.jobs b WHERE b.job_id = %(before)s::uuid))
  AND (%(dry_runs)s OR j.lock_at <> 'never')
ORDER BY j.submitted_at DESC, j.job_id DESC
LIMIT %(limit)s

-- name: try_turn
-- One loop at a time decides about a table; until the end of the transaction.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0::bigint))
