-- job_queue(job_id, kind, priority, visible_at, claimed_at, claimed_by, attempt_id, fence,
--           lease_until): narrow, and lease_until is in no index so that beats stay HOT.

-- name: beat
-- Renew the lease of my attempt; no row means that it is not mine any more.
UPDATE {schema}.job_queue
SET lease_until = now() + %(lease)s * interval '1 second'
WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s
RETURNING job_id

-- name: reissue_fence
-- A higher token for the same attempt, after the destination turned out to be ahead of us.
UPDATE {schema}.job_queue q
SET fence = nextval(%(sequence)s::regclass)
WHERE q.job_id = %(job_id)s AND q.attempt_id = %(attempt_id)s
RETURNING fence

-- name: reseed_tokens
-- Lift the sequence above a token seen in a destination; never lowers it.
SELECT setval(%(sequence)s::regclass, greatest(%(token)s, nextval(%(sequence)s::regclass)))

-- name: next_token
-- A token without a claim, for whoever raises a fence against a dead attempt.
SELECT nextval(%(sequence)s::regclass)

-- name: reclaim
-- Take a job from an attempt whose lease ran out or whose worker is gone.
WITH dead AS (
    SELECT q.job_id, q.attempt_id, j.crash_count + 1 >= j.max_attempts AS exhausted
    FROM {schema}.job_queue q
    JOIN {schema}.jobs j USING (job_id)
    LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
    WHERE q.job_id = %(job_id)s AND q.attempt_id = %(attempt_id)s
      AND (q.lease_until < now() OR w.worker_id IS NULL OR pg_try_advisory_xact_lock(w.lock_key))
    FOR UPDATE OF q SKIP LOCKED
), requeued AS (
    UPDATE {schema}.job_queue q
    SET claimed_at = NULL, claimed_by = NULL, attempt_id = NULL, fence = NULL,
        lease_until = NULL, visible_at = now()
    FROM dead d WHERE q.job_id = d.job_id AND NOT d.exhausted
), given_up AS (
    DELETE FROM {schema}.job_queue q USING dead d WHERE q.job_id = d.job_id AND d.exhausted
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING dead d WHERE l.job_id = d.job_id AND d.exhausted
), rotated AS (
    UPDATE {schema}.jobs j
    SET attempt_id = NULL, crash_count = j.crash_count + 1,
        status = CASE WHEN d.exhausted THEN 'failed' ELSE 'pending' END,
        error = CASE WHEN d.exhausted THEN 'its worker died in every attempt' END,
        finished_at = CASE WHEN d.exhausted THEN now() END
    FROM dead d WHERE j.job_id = d.job_id
), attempted AS (
    UPDATE {schema}.job_attempts a SET finished_at = now(), outcome = 'lost'
    FROM dead d WHERE a.attempt_id = d.attempt_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor)
    SELECT job_id, attempt_id, 'reclaimed', %(actor)s FROM dead
)
SELECT job_id, exhausted FROM dead

-- name: list_dead
-- Attempts at a resource, or at any, whose lease ran out or whose worker's session is gone.
SELECT q.job_id, q.attempt_id, j.resource, j.payload
FROM {schema}.job_queue q
JOIN {schema}.jobs j USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND l.classid::bigint = ((w.lock_key >> 32) & 4294967295)
     AND l.objid::bigint = (w.lock_key & 4294967295)
WHERE q.claimed_at IS NOT NULL
  AND (%(resource)s::text IS NULL OR j.resource = %(resource)s)
  AND (q.lease_until < now() OR l.pid IS NULL)

-- name: live_attempts
-- Attempts that hold a job.
SELECT attempt_id FROM {schema}.job_queue WHERE attempt_id IS NOT NULL
