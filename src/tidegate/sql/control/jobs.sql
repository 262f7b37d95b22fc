-- jobs(job_id, project, kind, name, resource, payload, plan, status, attempt_id, attempt_count,
--      crash_count, max_attempts, retry_of, result, error, submitted_by, submitted_at,
--      started_at, finished_at)

-- name: submit_job
-- A job, its place in the queue, its lock and its audit line; no row when the lock is taken.
WITH job AS (
    INSERT INTO {schema}.jobs
        (job_id, project, kind, name, resource, payload, max_attempts, submitted_by)
    SELECT %(job_id)s, %(project)s, %(kind)s, %(name)s, %(resource)s, %(payload)s,
           %(max_attempts)s, %(actor)s
    WHERE NOT EXISTS (SELECT FROM {schema}.table_locks WHERE resource = %(resource)s)
    RETURNING job_id
), queued AS (
    INSERT INTO {schema}.job_queue (job_id, kind) SELECT job_id, %(kind)s FROM job
), locked AS (
    INSERT INTO {schema}.table_locks (resource, job_id) SELECT %(resource)s, job_id FROM job
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor) SELECT job_id, 'submitted', %(actor)s
    FROM job
)
SELECT job_id FROM job

-- name: claim_job
-- One job by id, or the most urgent one: a new attempt with a fresh token and lease.
WITH next AS (
    SELECT q.job_id
    FROM {schema}.job_queue q
    WHERE q.claimed_at IS NULL AND q.visible_at <= now()
      AND (%(job_id)s::uuid IS NULL OR q.job_id = %(job_id)s)
    ORDER BY q.priority DESC, q.visible_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE {schema}.job_queue q
    SET claimed_at = now(), claimed_by = %(worker_id)s, attempt_id = %(attempt_id)s,
        fence = nextval(%(sequence)s::regclass),
        visible_at = now() + %(lease)s * interval '1 second',
        lease_until = now() + %(lease)s * interval '1 second'
    FROM next WHERE q.job_id = next.job_id
    RETURNING q.job_id, q.attempt_id, q.fence
), running AS (
    UPDATE {schema}.jobs j
    SET status = 'running', attempt_id = c.attempt_id, attempt_count = j.attempt_count + 1,
        started_at = coalesce(j.started_at, now())
    FROM claimed c WHERE j.job_id = c.job_id
    RETURNING j.job_id, j.kind, j.name, j.resource, j.payload, j.plan, j.attempt_count
), attempted AS (
    INSERT INTO {schema}.job_attempts (attempt_id, job_id, worker_id, fence)
    SELECT attempt_id, job_id, %(worker_id)s, fence FROM claimed
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor)
    SELECT job_id, attempt_id, 'claimed', %(worker_id)s FROM claimed
)
SELECT r.job_id, c.attempt_id, c.fence, r.kind, r.name, r.resource, r.payload, r.plan,
       r.attempt_count
FROM running r JOIN claimed c USING (job_id)

-- name: store_plan
-- The plan a retry of this job will use again; only the current attempt may store it.
UPDATE {schema}.jobs SET plan = %(plan)s
WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s

-- name: finish_job
-- Terminal state, queue row, lock, attempt and audit in one; no row when the attempt is stale.
WITH finished AS (
    UPDATE {schema}.jobs
    SET status = %(status)s, error = %(error)s, result = %(result)s, finished_at = now()
    WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s AND status = 'running'
    RETURNING job_id
), unqueued AS (
    DELETE FROM {schema}.job_queue q USING finished f
    WHERE q.job_id = f.job_id AND q.attempt_id = %(attempt_id)s
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING finished f WHERE l.job_id = f.job_id
), attempted AS (
    UPDATE {schema}.job_attempts a
    SET finished_at = now(), outcome = %(status)s, error = %(error)s
    FROM finished f WHERE a.attempt_id = %(attempt_id)s
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, attempt_id, event, actor, detail)
    SELECT job_id, %(attempt_id)s, %(status)s, %(actor)s, %(error)s FROM finished
)
SELECT job_id FROM finished

-- name: drop_pending
-- Give up a job that nobody is working on, in favour of another.
WITH dropped AS (
    UPDATE {schema}.jobs j SET status = 'cancelled', error = %(reason)s, finished_at = now()
    FROM {schema}.job_queue q
    WHERE j.job_id = %(job_id)s AND q.job_id = j.job_id AND j.status = 'pending'
      AND q.claimed_at IS NULL
    RETURNING j.job_id
), unqueued AS (
    DELETE FROM {schema}.job_queue q USING dropped d WHERE q.job_id = d.job_id
), unlocked AS (
    DELETE FROM {schema}.table_locks l USING dropped d WHERE l.job_id = d.job_id
), audited AS (
    INSERT INTO {schema}.job_audit (job_id, event, actor, detail)
    SELECT job_id, 'cancelled', %(actor)s, %(reason)s FROM dropped
)
SELECT job_id FROM dropped

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

-- name: last_target
-- Where the latest successful job of a sync loaded into.
SELECT payload ->> 'target' FROM {schema}.jobs
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s AND status = 'done'
ORDER BY submitted_at DESC
LIMIT 1

-- name: job_of_attempt
-- The job that an attempt was made at.
SELECT job_id::text FROM {schema}.job_attempts WHERE attempt_id = %(attempt_id)s
