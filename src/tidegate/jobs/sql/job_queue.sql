-- job_queue(job_id, kind, priority, visible_at, claimed_at, claimed_by, attempt_id, fence,
--           lease_until, project, unique_key, lock_resource, limits): narrow, and lease_until is in
--           no index so that beats stay HOT.

-- name: pick_ready
-- The most urgent jobs that may run now, for claim_jobs. The limit is no parameter: a plan that is
-- made for any number reads whole tables. What is used up is only looked up where a job has limits.
    SELECT q.job_id, q.lock_resource, q.priority, q.visible_at, q.limits
    FROM {schema}.job_queue q
    WHERE q.claimed_at IS NULL AND q.visible_at <= now()
      AND q.project = %(project)s AND q.kind = ANY(%(kinds)s)
      AND NOT EXISTS (SELECT FROM {schema}.table_locks l WHERE l.resource = q.lock_resource)
      AND (q.limits IS NULL OR NOT q.limits && ARRAY(
          SELECT u.name FROM {schema}.limits_used_up u WHERE u.project = %(project)s))
    ORDER BY q.priority DESC, q.visible_at, q.job_id
    LIMIT {limit}
    FOR UPDATE OF q SKIP LOCKED

-- name: pick_one
-- One job by its id, whether or not its time has come and whatever its limits, for claim_jobs.
    SELECT q.job_id, q.lock_resource, q.priority, q.visible_at, NULL::text[] AS limits
    FROM {schema}.job_queue q
    WHERE q.job_id = %(job_id)s AND q.claimed_at IS NULL
    FOR UPDATE OF q SKIP LOCKED

-- name: pick_limited
-- One job with limits that may run now, for claim_jobs, after lock_limits: nobody else counts.
    SELECT q.job_id, q.lock_resource, q.priority, q.visible_at, NULL::text[] AS limits
    FROM {schema}.job_queue q
    WHERE q.job_id = %(job_id)s AND q.claimed_at IS NULL AND q.visible_at <= now()
      AND NOT EXISTS (SELECT FROM {schema}.table_locks l WHERE l.resource = q.lock_resource)
      AND NOT q.limits && ARRAY(
          SELECT u.name FROM {schema}.limits_used_up u WHERE u.project = %(project)s)
    FOR UPDATE OF q SKIP LOCKED

-- name: find_unique
-- The unfinished job that has a unique key.
SELECT job_id FROM {schema}.job_queue
WHERE project = %(project)s AND unique_key = %(unique_key)s

-- name: list_waiting_like
-- Jobs for the same work that nobody works on, the oldest first.
SELECT q.job_id FROM {schema}.job_queue q JOIN {schema}.jobs j USING (job_id)
WHERE q.claimed_at IS NULL AND q.project = %(project)s AND q.kind = %(kind)s
  AND j.name = %(name)s AND j.payload = %(payload)s
ORDER BY q.job_id

-- name: beat
-- Renew lease and lock of each attempt and the worker's own beat; who is left out is not its own
-- any more.
WITH held AS (
    SELECT q.job_id, q.attempt_id FROM {schema}.job_queue q
    JOIN unnest(%(job_ids)s::uuid[], %(attempt_ids)s::text[]) AS m(job_id, attempt_id)
        ON m.job_id = q.job_id AND m.attempt_id = q.attempt_id
    ORDER BY q.job_id
    FOR NO KEY UPDATE OF q
), renewed AS (
    UPDATE {schema}.job_queue q SET lease_until = now() + %(lease)s * interval '1 second'
    FROM held h WHERE q.job_id = h.job_id
    RETURNING q.job_id, q.attempt_id
), locks AS (
    UPDATE {schema}.table_locks l SET renewed_at = now() FROM held h WHERE l.job_id = h.job_id
), worker AS (
    UPDATE {schema}.workers SET beat_at = now() WHERE worker_id = %(worker_id)s
)
SELECT attempt_id FROM renewed

-- name: depth
-- How many jobs could be claimed now; autoscalers ask this too.
SELECT COUNT(*) FROM {schema}.job_queue WHERE claimed_at IS NULL AND visible_at <= NOW()

-- name: next_visible
-- How long until the next waiting job may run, in seconds; nothing when none waits for its time.
SELECT extract(epoch FROM min(q.visible_at) - clock_timestamp())::float8
FROM {schema}.job_queue q
WHERE q.claimed_at IS NULL AND q.visible_at < 'infinity'
  AND q.project = %(project)s AND q.kind = ANY(%(kinds)s)
  AND NOT EXISTS (SELECT FROM {schema}.table_locks l WHERE l.resource = q.lock_resource)
  AND (q.limits IS NULL OR NOT q.limits && ARRAY(
      SELECT u.name FROM {schema}.limits_used_up u WHERE u.project = %(project)s))

-- name: list_dead
-- Attempts at a resource, or at any, whose lease ran out or whose worker's session is gone.
SELECT q.job_id, q.attempt_id, j.kind, j.resource, j.payload, j.plan, j.crash_count,
       j.max_attempts
FROM {schema}.job_queue q
JOIN {schema}.jobs j USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
     AND l.objsubid = 1
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND l.classid::bigint = ((w.lock_key >> 32) & 4294967295)
     AND l.objid::bigint = (w.lock_key & 4294967295)
WHERE q.claimed_by IS NOT NULL AND q.attempt_id IS NOT NULL
  AND (%(resource)s::text IS NULL OR j.resource = %(resource)s)
  AND (%(project)s::text IS NULL OR q.project = %(project)s)
  AND (q.lease_until < now() OR l.pid IS NULL)

-- name: reclaim
-- Take a job from an attempt whose lease ran out or whose worker is gone.
WITH dead AS (
    SELECT q.job_id, q.attempt_id, q.lock_resource, q.project,
           %(last)s OR j.crash_count + 1 >= %(most_crashes)s AS exhausted
    FROM {schema}.job_queue q
    JOIN {schema}.jobs j USING (job_id)
    LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
    WHERE q.job_id = %(job_id)s AND q.attempt_id = %(attempt_id)s
      AND (q.lease_until < now() OR w.worker_id IS NULL
           -- Shared: another may take another job of the same worker at this very moment.
           OR pg_try_advisory_xact_lock_shared(w.lock_key))
    FOR UPDATE OF q SKIP LOCKED
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING dead d
    WHERE l.job_id = d.job_id AND (d.exhausted OR d.lock_resource IS NOT NULL)
), requeued AS (
    UPDATE {schema}.job_queue q
    SET claimed_at = NULL, claimed_by = NULL, attempt_id = NULL, fence = NULL,
        lease_until = NULL, visible_at = now() + %(delay)s * interval '1 second'
    FROM dead d WHERE q.job_id = d.job_id AND NOT d.exhausted
), given_up AS (
    DELETE FROM {schema}.job_queue q USING dead d WHERE q.job_id = d.job_id AND d.exhausted
), rotated AS (
    UPDATE {schema}.jobs j
    SET attempt_id = NULL, crash_count = j.crash_count + 1,
        status = CASE WHEN NOT d.exhausted THEN 'pending' WHEN %(published)s THEN 'done'
                      ELSE 'failed' END,
        error = CASE WHEN d.exhausted AND NOT %(published)s
                     THEN CASE WHEN %(last)s THEN 'its process died'
                               ELSE 'its worker died in every attempt' END END,
        result = CASE WHEN d.exhausted AND %(published)s THEN j.progress END,
        finished_at = CASE WHEN d.exhausted THEN now() END
    FROM dead d WHERE j.job_id = d.job_id
), attempted AS (
    UPDATE {schema}.job_attempts a SET finished_at = now(), outcome = 'lost'
    FROM dead d WHERE a.attempt_id = d.attempt_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor)
    SELECT job_id, attempt_id, 'reclaimed', %(actor)s FROM dead
    UNION ALL
    SELECT job_id, NULL, CASE WHEN %(published)s THEN 'done' ELSE 'failed' END, %(actor)s
    FROM dead WHERE exhausted
)
SELECT job_id, exhausted, pg_notify(%(channel)s, project) FROM dead

-- name: list_half_cancelled
-- Jobs that somebody began to cancel and did not live to end.
SELECT j.job_id, j.kind, j.name, j.resource, j.payload, j.plan
FROM {schema}.job_queue q
JOIN {schema}.jobs j USING (job_id)
WHERE q.claimed_by IS NOT NULL AND q.attempt_id IS NULL AND q.lease_until < now()
  AND q.project = %(project)s

-- name: held_by
-- The attempts of one worker.
SELECT job_id, attempt_id FROM {schema}.job_queue
WHERE claimed_by = %(worker_id)s AND attempt_id IS NOT NULL

-- name: live_attempts
-- Attempts that hold a job.
SELECT attempt_id FROM {schema}.job_queue
WHERE claimed_by IS NOT NULL AND attempt_id IS NOT NULL
