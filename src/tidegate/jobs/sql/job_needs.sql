-- job_needs(job_id, needs), resource_limits(project, name, places): what a job waits for besides
-- its time. Queue rows are locked first, in the order of their ids, as everywhere.

-- name: lock_waiting
-- Those who wait for a job; whoever settles them at the same time waits for the other.
SELECT q.job_id FROM {schema}.job_queue q
WHERE q.job_id IN (SELECT n.job_id FROM {schema}.job_needs n WHERE n.needs = %(job_id)s)
ORDER BY q.job_id
FOR UPDATE OF q

-- name: how_ended
-- The status and name of a job; no row when it was forgotten.
SELECT status, name FROM {schema}.jobs WHERE job_id = %(job_id)s

-- name: meet_need
-- A job is done: nobody waits for it any more.
DELETE FROM {schema}.job_needs WHERE needs = %(job_id)s

-- name: release_ready
-- Of these, those who wait for nothing any more may run now.
WITH ready AS (
    UPDATE {schema}.job_queue q SET visible_at = now()
    WHERE q.job_id = ANY(%(job_ids)s) AND q.claimed_at IS NULL AND q.visible_at = 'infinity'
      AND NOT EXISTS (SELECT FROM {schema}.job_needs n WHERE n.job_id = q.job_id)
    RETURNING q.job_id, q.project
), told AS (
    SELECT pg_notify(%(channel)s, project) FROM (SELECT DISTINCT project FROM ready) p
)
SELECT job_id, (SELECT count(*) FROM told) FROM ready

-- name: fail_waiting
-- Of these, nobody works on any: they end as failed, since what they need did not succeed.
WITH waiting AS (
    SELECT q.job_id FROM {schema}.job_queue q
    WHERE q.job_id = ANY(%(job_ids)s) AND q.claimed_at IS NULL
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING waiting w WHERE l.job_id = w.job_id
), unqueued AS (
    DELETE FROM {schema}.job_queue q USING waiting w WHERE q.job_id = w.job_id
), unneeded AS (
    DELETE FROM {schema}.job_needs n USING waiting w WHERE n.job_id = w.job_id
), failed AS (
    UPDATE {schema}.jobs j SET status = 'failed', error = %(error)s, finished_at = now()
    FROM waiting w WHERE j.job_id = w.job_id AND j.status = 'pending'
    RETURNING j.job_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor, detail)
    SELECT job_id, 'failed', %(actor)s, %(error)s FROM failed
)
SELECT f.job_id FROM failed f

-- name: list_unsettled
-- Jobs that have ended, or were forgotten, while others still wait for them.
SELECT n.needs FROM {schema}.job_needs n
LEFT JOIN {schema}.jobs needed ON needed.job_id = n.needs
WHERE needed.job_id IS NULL OR needed.status IN ('done', 'failed', 'cancelled')
GROUP BY n.needs
ORDER BY n.needs
LIMIT %(limit)s

-- name: release_forgotten
-- Those whose needs are all met while nobody told them; a second look for what a crash left.
WITH forgotten AS (
    SELECT q.job_id FROM {schema}.job_queue q
    WHERE q.visible_at = 'infinity' AND q.claimed_at IS NULL
      AND NOT EXISTS (SELECT FROM {schema}.job_needs n WHERE n.job_id = q.job_id)
    ORDER BY q.job_id
    FOR UPDATE OF q SKIP LOCKED
)
UPDATE {schema}.job_queue q SET visible_at = now()
FROM forgotten f WHERE q.job_id = f.job_id
RETURNING q.job_id, pg_notify(%(channel)s, q.project)

-- name: list_needs
-- What a job still waits for.
SELECT n.needs, j.name, j.status FROM {schema}.job_needs n
LEFT JOIN {schema}.jobs j ON j.job_id = n.needs
WHERE n.job_id = %(job_id)s
ORDER BY j.name, n.needs

-- name: lock_limits
-- Be alone in counting who uses these resources, until the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended(key, 0::bigint))
FROM (SELECT key FROM unnest(%(keys)s::text[]) AS k(key) ORDER BY key) ordered

-- name: set_limits
-- How many places there are, as declared now; unchanged rows are left alone.
INSERT INTO {schema}.resource_limits AS r (project, name, places)
SELECT %(project)s, name, places
FROM unnest(%(names)s::text[], %(places)s::int[]) AS d(name, places)
ON CONFLICT (project, name) DO UPDATE SET places = excluded.places
WHERE r.places <> excluded.places

-- name: forget_limits
-- Resources that are declared no more have one place again.
DELETE FROM {schema}.resource_limits
WHERE project = %(project)s AND NOT name = ANY(%(names)s::text[])
