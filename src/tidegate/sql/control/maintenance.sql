-- jobs and job_actions of maintenance: what was done to a table, and when last.

-- name: last_actions
-- Of each action the newest run at a table: as it was recorded, or, where an ended job never came to
-- it, as that job ended. Dry runs are none.
WITH recent AS (
    SELECT j.job_id, j.status, j.error, j.finished_at, j.submitted_at, j.payload -> 'order' AS steps
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
    SELECT s.action, r.finished_at, r.status, r.error
    FROM recent r, jsonb_object_keys(r.steps) AS s(action)
    WHERE r.status IN ('failed', 'cancelled') AND jsonb_typeof(r.steps) = 'object'
      AND NOT EXISTS (SELECT FROM {schema}.job_actions a
                      WHERE a.job_id = r.job_id AND a.action = s.action)
)
SELECT DISTINCT ON (action) action, at, status, error FROM runs
WHERE at IS NOT NULL AND status IS DISTINCT FROM 'skipped'
ORDER BY action, at DESC

-- name: failures_in_a_row
-- How many of the newest ended jobs of one submitter at a table did not end well, one after the
-- other, and when the newest of them ended.
WITH ended AS (
    SELECT j.status, j.finished_at,
           row_number() OVER (ORDER BY j.submitted_at DESC, j.job_id DESC) AS place
    FROM {schema}.jobs j
    WHERE j.project = %(project)s AND j.kind = 'maintenance' AND j.name = %(name)s
      AND j.submitted_by = %(actor)s AND j.status IN ('done', 'failed', 'cancelled')
      AND j.lock_at <> 'never'
    ORDER BY j.submitted_at DESC, j.job_id DESC
    LIMIT 20
)
SELECT count(*)::int, max(finished_at) FROM ended
WHERE place < coalesce((SELECT min(place) FROM ended WHERE status = 'done'), 21)

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
SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0))
