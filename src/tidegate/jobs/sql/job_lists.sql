-- jobs, job_queue, workers and table_locks together, for people who look.

-- name: list_jobs
-- Jobs of a project, the newest first, with who works on each and what it waits for. The unfinished
-- are in the queue, so that they are found without reading the finished ones.
SELECT j.job_id, j.kind, j.name, j.status, j.attempt_count, j.error_count, j.crash_count,
       j.max_attempts, j.priority, j.submitted_at, j.started_at, j.finished_at,
       j.cancel_requested_at, j.cancel_requested_by, j.error, j.progress,
       (j.result ->> 'loads')::int, (j.result ->> 'rows')::bigint,
       nullif(q.visible_at, 'infinity'),
       q.claimed_at, q.lease_until, q.attempt_id, q.claimed_by, w.host, w.pid, w.command,
       w.beat_at,
       CASE WHEN w.worker_id IS NULL THEN false ELSE EXISTS (
           SELECT FROM pg_locks l
           WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
             AND l.objsubid = 1
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND l.classid::bigint = ((w.lock_key >> 32) & 4294967295)
             AND l.objid::bigint = (w.lock_key & 4294967295)) END,
       CASE WHEN q.claimed_at IS NULL AND q.lock_resource IS NOT NULL THEN (
           SELECT t.job_id FROM {schema}.table_locks t
           WHERE t.resource = q.lock_resource AND t.job_id <> j.job_id) END,
       clock_timestamp()
FROM {schema}.jobs j
LEFT JOIN {schema}.job_queue q USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
WHERE j.project = %(project)s
  AND (%(job_ids)s::uuid[] IS NULL OR j.job_id = ANY(%(job_ids)s))
  AND (%(statuses)s::text[] IS NULL OR j.status = ANY(%(statuses)s))
  AND (NOT %(unfinished)s OR q.job_id IS NOT NULL)
  AND (%(kinds)s::text[] IS NULL OR j.kind = ANY(%(kinds)s))
  AND (%(names)s::text[] IS NULL OR j.name = ANY(%(names)s))
  AND (%(before_at)s::timestamptz IS NULL
       OR (j.submitted_at, j.job_id) < (%(before_at)s, %(before_id)s::uuid))
ORDER BY j.submitted_at DESC, j.job_id DESC
LIMIT %(limit)s

-- name: find_jobs
-- Jobs of a project whose id lies between two, for an id that was abbreviated.
SELECT job_id, kind, name, status FROM {schema}.jobs
WHERE project = %(project)s AND job_id BETWEEN %(lowest)s AND %(highest)s
ORDER BY job_id DESC
LIMIT %(limit)s

-- name: later_jobs
-- The jobs of the same kind and name that were submitted after one, the newest first.
SELECT job_id, status, retry_of FROM {schema}.jobs
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s
  AND submitted_at >= %(submitted_at)s AND job_id <> %(job_id)s
ORDER BY submitted_at DESC, job_id DESC
LIMIT 20

-- name: count_queue
-- For each kind: how many jobs of a project could start now, wait for a later time, and run.
SELECT kind,
       count(*) FILTER (WHERE claimed_at IS NULL AND visible_at <= now()),
       count(*) FILTER (WHERE claimed_at IS NULL AND visible_at > now()),
       nullif(min(visible_at) FILTER (WHERE claimed_at IS NULL AND visible_at > now()), 'infinity'),
       count(*) FILTER (WHERE claimed_at IS NOT NULL)
FROM {schema}.job_queue
WHERE project = %(project)s
GROUP BY kind
ORDER BY kind

-- name: count_failed
-- Jobs of the last day that failed and that no later job of their name has made good.
SELECT count(*) FROM {schema}.jobs j
WHERE j.project = %(project)s AND j.status = 'failed'
  AND j.submitted_at > now() - interval '1 day'
  AND NOT EXISTS (
      SELECT FROM {schema}.jobs later
      WHERE later.project = j.project AND later.name = j.name AND later.kind = j.kind
        AND later.status = 'done' AND later.submitted_at > j.submitted_at)

-- name: count_unfinished
-- How many jobs of any project are queued, and how many run.
SELECT count(*) FILTER (WHERE claimed_at IS NULL), count(*) FILTER (WHERE claimed_at IS NOT NULL)
FROM {schema}.job_queue
