-- jobs(job_id, project, kind, name, resource, payload, plan, status, attempt_id, attempt_count,
--      crash_count, max_attempts, retry_of, result, error, submitted_by, submitted_at,
--      started_at, finished_at, priority, error_count, lock_at, unique_key, idempotency_key,
--      progress, cancel_requested_at, cancel_requested_by, limits)
-- Rows are locked in one order everywhere, so that nobody deadlocks: job_queue by job_id, then
-- table_locks by resource, then jobs.

-- name: submit_job
-- A job, its place in the queue, its lock and its audit line; no row when the lock is taken or
-- nothing is taken in. One that needs others waits until they are done.
WITH job AS (
    INSERT INTO {schema}.jobs
        (job_id, project, kind, name, resource, payload, max_attempts, priority, lock_at,
         unique_key, idempotency_key, retry_of, submitted_by, limits)
    SELECT %(job_id)s, %(project)s, %(kind)s, %(name)s, %(resource)s, %(payload)s,
           %(max_attempts)s, %(priority)s, %(lock_at)s, %(unique_key)s, %(idempotency_key)s,
           %(retry_of)s, %(actor)s, %(limits)s
    WHERE NOT EXISTS (SELECT FROM {schema}.control_plane WHERE draining_since IS NOT NULL)
      AND (%(lock_at)s <> 'submit'
           OR NOT EXISTS (SELECT FROM {schema}.table_locks WHERE resource = %(resource)s))
    RETURNING job_id
), queued AS (
    INSERT INTO {schema}.job_queue
        (job_id, project, kind, priority, visible_at, unique_key, lock_resource, limits)
    SELECT job_id, %(project)s, %(kind)s, %(priority)s,
           CASE WHEN %(needs)s::uuid[] IS NOT NULL THEN 'infinity'
                ELSE coalesce(%(visible_at)s, now() + %(delay)s * interval '1 second') END,
           %(unique_key)s, CASE WHEN %(lock_at)s = 'claim' THEN %(resource)s::text END, %(limits)s
    FROM job
), waiting AS (
    INSERT INTO {schema}.job_needs (job_id, needs)
    SELECT job_id, needs FROM job CROSS JOIN LATERAL unnest(%(needs)s::uuid[]) AS n(needs)
), locked AS (
    INSERT INTO {schema}.table_locks (resource, job_id)
    SELECT %(resource)s, job_id FROM job WHERE %(lock_at)s = 'submit'
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor) SELECT job_id, 'submitted', %(actor)s
    FROM job
)
SELECT job_id, CASE WHEN %(announce)s THEN pg_notify(%(channel)s, %(project)s) END FROM job

-- name: record_done
-- Work that is over and done before it is written down; no row when its idempotency key was used.
WITH job AS (
    INSERT INTO {schema}.jobs
        (job_id, project, kind, name, payload, result, status, max_attempts, lock_at,
         idempotency_key, submitted_by, started_at, finished_at)
    VALUES (%(job_id)s, %(project)s, %(kind)s, %(name)s, %(payload)s, %(result)s, 'done', 1,
            'never', %(idempotency_key)s, %(actor)s, now(), now())
    ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING job_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor) SELECT job_id, 'done', %(actor)s FROM job
)
SELECT job_id FROM job

-- name: announce_projects
-- Wake the workers of these projects.
SELECT pg_notify(%(channel)s, project) FROM unnest(%(projects)s::text[]) AS p(project)

-- name: find_by_idempotency_key
-- The job that a key was given to, and whether the same is asked for now.
SELECT job_id, kind, name,
       kind = %(kind)s AND name = %(name)s AND payload = %(payload)s
       AND resource IS NOT DISTINCT FROM %(resource)s::text
FROM {schema}.jobs
WHERE project = %(project)s AND idempotency_key = %(idempotency_key)s

-- name: claiming
-- New attempts, each with a fresh token and lease, at the jobs picked from the queue; one whose
-- resource another has taken meanwhile comes without an attempt, and so does one with limits: for
-- that one who counts must be alone (claim_limited). A part of claims and turns.
picked AS (
{picked}
), locked AS (
    INSERT INTO {schema}.table_locks (resource, job_id)
    SELECT DISTINCT ON (lock_resource) lock_resource, job_id
    FROM picked WHERE lock_resource IS NOT NULL AND limits IS NULL
    ORDER BY lock_resource, priority DESC, visible_at, job_id
    ON CONFLICT (resource) DO NOTHING
    RETURNING job_id
), claimed AS (
    UPDATE {schema}.job_queue q
    SET claimed_at = now(), claimed_by = %(worker_id)s,
        attempt_id = replace(gen_random_uuid()::text, '-', ''),
        fence = nextval(%(sequence)s::regclass),
        visible_at = now() + %(lease)s * interval '1 second',
        lease_until = now() + %(lease)s * interval '1 second'
    FROM picked p
    WHERE q.job_id = p.job_id AND p.limits IS NULL
      AND (p.lock_resource IS NULL OR p.job_id IN (SELECT job_id FROM locked))
    RETURNING q.job_id, q.attempt_id, q.fence
), running AS (
    UPDATE {schema}.jobs j
    SET status = 'running', attempt_id = c.attempt_id, attempt_count = j.attempt_count + 1,
        started_at = coalesce(j.started_at, now())
    FROM claimed c WHERE j.job_id = c.job_id
    RETURNING j.job_id, c.attempt_id, c.fence, j.kind, j.name, j.resource, j.payload, j.plan,
              j.attempt_count, j.error_count, j.max_attempts
), attempted AS (
    INSERT INTO {schema}.job_attempts (attempt_id, job_id, worker_id, fence)
    SELECT attempt_id, job_id, %(worker_id)s, fence FROM claimed
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor)
    SELECT job_id, attempt_id, 'claimed', %(worker_id)s FROM claimed
)

-- name: claim_jobs
-- The claim of the jobs picked from the queue, by itself.
WITH {claiming}
SELECT p.limits, p.job_id, r.attempt_id, r.fence, r.kind, r.name, r.resource, r.payload, r.plan,
       r.attempt_count, r.error_count, r.max_attempts
FROM picked p
LEFT JOIN running r ON r.job_id = p.job_id
ORDER BY p.priority DESC, p.visible_at, p.job_id

-- name: take_turn
-- Finish and claim in one statement, hence in one commit and one round trip; there is always a
-- row, which names the attempts that were ended, the jobs among them that others need, and whether
-- places became free. What the ending unlocks is claimed a turn later.
WITH {finishing},
{claiming}
SELECT e.won, e.needed,
       EXISTS (SELECT FROM ended_queue WHERE limits IS NOT NULL), p.limits, p.job_id, r.attempt_id,
       r.fence, r.kind, r.name, r.resource, r.payload, r.plan, r.attempt_count, r.error_count,
       r.max_attempts
FROM (SELECT array_agg(attempt_id) AS won, array_agg(job_id) FILTER (WHERE needed) AS needed
      FROM finished) e
LEFT JOIN (picked p LEFT JOIN running r ON r.job_id = p.job_id) ON true
ORDER BY p.priority DESC, p.visible_at, p.job_id

-- name: store_plan
-- The plan a retry of this job will use again; only the current attempt may store it.
UPDATE {schema}.jobs SET plan = %(plan)s
WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s

-- name: record_progress
-- How far the current attempt has got, for whoever watches.
UPDATE {schema}.jobs SET progress = %(progress)s
WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s

-- name: finishing
-- Terminal state, queue row, lock, attempt and audit of each; an attempt that is stale is left
-- out. A part of endings and turns.
ended AS (
    SELECT * FROM unnest(%(job_ids)s::uuid[], %(attempt_ids)s::text[], %(statuses)s::text[],
                         %(errors)s::text[], %(results)s::jsonb[])
        AS e(job_id, attempt_id, status, error, result)
), mine AS (
    SELECT e.* FROM {schema}.job_queue q
    JOIN ended e ON e.job_id = q.job_id AND e.attempt_id = q.attempt_id
    ORDER BY q.job_id
    FOR UPDATE OF q
), ended_locks AS (
    DELETE FROM {schema}.table_locks l USING mine m WHERE l.job_id = m.job_id
    RETURNING l.job_id
), ended_queue AS (
    DELETE FROM {schema}.job_queue q USING mine m WHERE q.job_id = m.job_id
    RETURNING q.limits
), finished AS (
    UPDATE {schema}.jobs j
    SET status = m.status, error = m.error, result = m.result, finished_at = now(),
        error_count = j.error_count + (m.status = 'failed')::int
    FROM mine m
    WHERE j.job_id = m.job_id AND j.attempt_id = m.attempt_id AND j.status = 'running'
    RETURNING j.job_id, m.attempt_id, m.status, m.error,
              EXISTS (SELECT FROM {schema}.job_needs n WHERE n.needs = j.job_id) AS needed
), ended_attempts AS (
    UPDATE {schema}.job_attempts a
    SET finished_at = now(), outcome = f.status, error = f.error
    FROM finished f WHERE a.attempt_id = f.attempt_id
), ended_audit AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor, detail)
    SELECT job_id, attempt_id, status, %(actor)s, error FROM finished
)

-- name: finish_jobs
-- Several endings, by themselves; who waits for a lock or a place that becomes free is told.
WITH {finishing}
SELECT f.attempt_id, f.job_id, f.needed,
       (SELECT pg_notify(%(channel)s, '')
        FROM (SELECT FROM ended_locks UNION ALL SELECT FROM ended_queue WHERE limits IS NOT NULL)
             AS freed
        LIMIT 1)
FROM finished f

-- name: give_back_job
-- From running to pending again: after an error, to be tried later, or because the worker leaves.
WITH mine AS (
    SELECT q.job_id, q.lock_resource, q.project FROM {schema}.job_queue q
    WHERE q.job_id = %(job_id)s AND q.attempt_id = %(attempt_id)s
    FOR UPDATE OF q
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING mine m
    WHERE l.job_id = m.job_id AND m.lock_resource IS NOT NULL
), requeued AS (
    UPDATE {schema}.job_queue q
    SET claimed_at = NULL, claimed_by = NULL, attempt_id = NULL, fence = NULL,
        lease_until = NULL, visible_at = now() + %(delay)s * interval '1 second'
    FROM mine m WHERE q.job_id = m.job_id
), rotated AS (
    UPDATE {schema}.jobs j
    SET status = 'pending', attempt_id = NULL, error = %(error)s,
        error_count = j.error_count + (%(outcome)s = 'error')::int
    FROM mine m WHERE j.job_id = m.job_id AND j.attempt_id = %(attempt_id)s
    RETURNING j.job_id
), attempted AS (
    UPDATE {schema}.job_attempts a
    SET finished_at = now(), outcome = %(outcome)s, error = %(error)s
    FROM rotated r WHERE a.attempt_id = %(attempt_id)s
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor, detail)
    SELECT job_id, %(attempt_id)s, %(event)s, %(actor)s, %(error)s FROM rotated
)
SELECT r.job_id, pg_notify(%(channel)s, m.project) FROM rotated r JOIN mine m USING (job_id)

-- name: drop_pending
-- Give up a job that nobody is working on.
WITH waiting AS (
    SELECT job_id FROM {schema}.job_queue
    WHERE job_id = %(job_id)s AND claimed_at IS NULL
    FOR UPDATE
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING waiting w WHERE l.job_id = w.job_id
), unqueued AS (
    DELETE FROM {schema}.job_queue q USING waiting w WHERE q.job_id = w.job_id
), dropped AS (
    UPDATE {schema}.jobs j SET status = 'cancelled', error = %(reason)s, finished_at = now()
    FROM waiting w WHERE j.job_id = w.job_id AND j.status = 'pending'
    RETURNING j.job_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor, detail)
    SELECT job_id, 'cancelled', %(actor)s, %(reason)s FROM dropped
)
SELECT job_id FROM dropped

-- name: request_cancel
-- Take a job away from whoever works on it, without ending it yet: its table stays locked until
-- the destination knows.
WITH held AS (
    SELECT job_id, attempt_id, claimed_by FROM {schema}.job_queue
    WHERE job_id = %(job_id)s AND claimed_at IS NOT NULL
    FOR UPDATE
), rotated_queue AS (
    UPDATE {schema}.job_queue q
    SET attempt_id = NULL, lease_until = now() + %(patience)s * interval '1 second'
    FROM held h WHERE q.job_id = h.job_id
), rotated AS (
    UPDATE {schema}.jobs j
    SET attempt_id = NULL, cancel_requested_at = now(), cancel_requested_by = %(actor)s
    FROM held h WHERE j.job_id = h.job_id
    RETURNING j.job_id, j.kind, j.name, j.resource, j.payload, j.plan
), attempted AS (
    UPDATE {schema}.job_attempts a SET finished_at = now(), outcome = 'cancelled'
    FROM held h WHERE a.attempt_id = h.attempt_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor)
    SELECT job_id, attempt_id, 'cancel requested', %(actor)s FROM held
)
SELECT r.job_id, h.attempt_id, r.kind, r.name, r.resource, r.payload, r.plan,
       pg_notify(%(channel)s, coalesce(h.attempt_id, ''))
FROM rotated r JOIN held h USING (job_id)

-- name: finish_cancel
-- The destination knows: the job ends, its table is free. No row when another has ended it.
WITH held AS (
    SELECT q.job_id FROM {schema}.job_queue q
    WHERE q.job_id = %(job_id)s AND q.claimed_at IS NOT NULL AND q.attempt_id IS NULL
    FOR UPDATE OF q
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING held h WHERE l.job_id = h.job_id
), unqueued AS (
    DELETE FROM {schema}.job_queue q USING held h WHERE q.job_id = h.job_id
), finished AS (
    UPDATE {schema}.jobs j
    SET status = %(status)s, error = %(error)s, result = %(result)s, finished_at = now()
    FROM held h WHERE j.job_id = h.job_id AND j.status = 'running'
    RETURNING j.job_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor, detail)
    SELECT job_id, %(status)s, %(actor)s, %(error)s FROM finished
)
SELECT job_id FROM finished

-- name: get_job
-- One job, whole.
SELECT j.job_id, j.project, j.kind, j.name, j.resource, j.status, j.payload, j.plan, j.progress,
       j.result, j.error, j.attempt_count, j.error_count, j.crash_count, j.max_attempts,
       j.priority, j.retry_of, j.submitted_by, j.submitted_at, j.started_at, j.finished_at,
       j.cancel_requested_at, nullif(q.visible_at, 'infinity'), q.claimed_at, q.lease_until,
       q.attempt_id, w.host, w.pid, w.beat_at, j.lock_at, j.unique_key, j.limits
FROM {schema}.jobs j
LEFT JOIN {schema}.job_queue q USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
WHERE j.job_id = %(job_id)s

-- name: recent_jobs
-- The latest job of every sync of a project.
SELECT DISTINCT ON (name) name, job_id, status, error, result, submitted_at, finished_at
FROM {schema}.jobs
WHERE project = %(project)s AND kind = %(kind)s
ORDER BY name, submitted_at DESC

-- name: last_result
-- What the latest successful job of a sync left.
SELECT result FROM {schema}.jobs
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s AND status = 'done'
ORDER BY submitted_at DESC
LIMIT 1

-- name: unfinished_plans
-- What the unfinished jobs of a name are at.
SELECT j.plan FROM {schema}.jobs j JOIN {schema}.job_queue q USING (job_id)
WHERE j.project = %(project)s AND j.name = %(name)s AND j.kind = %(kind)s AND j.plan IS NOT NULL

-- name: last_target
-- Where the latest successful job of a sync loaded into.
SELECT payload ->> 'target' FROM {schema}.jobs
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s AND status = 'done'
ORDER BY submitted_at DESC
LIMIT 1

-- name: job_of_attempt
-- The job that an attempt was made at.
SELECT job_id::text FROM {schema}.job_attempts WHERE attempt_id = %(attempt_id)s

-- name: prune_jobs
-- Forget jobs that ended long ago, with their attempts, steps and audit; the newest that is done of
-- each sync stays, since the next run goes by its result.
WITH old AS (
    SELECT j.job_id FROM {schema}.jobs j
    WHERE j.submitted_at < now() - %(older_than)s * interval '1 second'
      AND j.finished_at < now() - %(older_than)s * interval '1 second'
      AND j.status IN ('done', 'failed', 'cancelled')
      AND (j.status <> 'done' OR j.kind <> 'sync' OR j.job_id <> (
          SELECT newest.job_id FROM {schema}.jobs newest
          WHERE newest.project = j.project AND newest.name = j.name AND newest.kind = j.kind
            AND newest.status = 'done'
          ORDER BY newest.submitted_at DESC, newest.job_id DESC
          LIMIT 1))
    ORDER BY j.submitted_at
    LIMIT %(limit)s
    FOR UPDATE OF j SKIP LOCKED
), audited AS (
    DELETE FROM {schema}.job_audit a USING old o WHERE a.job_id = o.job_id
)
DELETE FROM {schema}.jobs j USING old o WHERE j.job_id = o.job_id

-- name: outcome_of_attempt
-- How an attempt ended, for one whose answer was lost.
SELECT outcome FROM {schema}.job_attempts WHERE attempt_id = %(attempt_id)s
