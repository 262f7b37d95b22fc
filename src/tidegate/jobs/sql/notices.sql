-- job_failures(job_id, project, failed_at): what nobody has looked at yet.
-- failing(project, kind, name, subject, streak_id, failures, first_failed_at, last_failed_at,
--         last_job_id, told_at): what is not well.
-- notices(notice_id, channel, project, name, document, created_at, tries, try_at, ended_at, outcome,
--         error): the outbox.

-- name: try_noticing
-- One notifier of a project looks at a time; the others leave it to that one.
SELECT pg_try_advisory_xact_lock(hashtextextended('tidegate notices:' || %(place)s, 0::bigint))

-- name: list_failures
-- What has failed since somebody last looked, in the order in which it failed.
SELECT j.job_id, j.kind, j.name,
       coalesce(CASE WHEN j.kind = 'task' THEN (j.payload -> 'parameters')::text END, ''),
       CASE WHEN j.kind = 'task' THEN j.payload -> 'parameters' END, j.error, j.finished_at,
       j.attempt_count
FROM {schema}.job_failures f JOIN {schema}.jobs j USING (job_id)
WHERE f.project = %(project)s
ORDER BY f.failed_at, f.job_id
LIMIT %(limit)s

-- name: forget_failures
-- They have been looked at.
DELETE FROM {schema}.job_failures WHERE job_id = ANY(%(job_ids)s)

-- name: list_failing
-- What is not well, of one name.
SELECT subject, streak_id, failures, first_failed_at, last_failed_at, told_at
FROM {schema}.failing
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s

-- name: note_failing
-- Another failure of a streak, or the first.
INSERT INTO {schema}.failing AS f
    (project, kind, name, subject, streak_id, failures, first_failed_at, last_failed_at,
     last_job_id, told_at)
VALUES (%(project)s, %(kind)s, %(name)s, %(subject)s, %(streak_id)s, 1, %(failed_at)s,
        %(failed_at)s, %(job_id)s, %(told_at)s)
ON CONFLICT (project, kind, name, subject) DO UPDATE
SET failures = f.failures + 1, last_failed_at = excluded.last_failed_at,
    last_job_id = excluded.last_job_id

-- name: note_told
-- People know of it.
UPDATE {schema}.failing SET told_at = now()
WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s

-- name: list_recovered
-- What has been done since it failed last, up to a moment. Jobs are looked through from the newest
-- backwards; one that was submitted a day before the failure is waited for no longer.
SELECT f.kind, f.name, f.subject, f.streak_id, f.failures, f.first_failed_at, d.job_id,
       d.finished_at, d.parameters
FROM {schema}.failing f
CROSS JOIN LATERAL (
    SELECT j.job_id, j.finished_at,
           CASE WHEN j.kind = 'task' THEN j.payload -> 'parameters' END AS parameters
    FROM {schema}.jobs j
    WHERE j.project = f.project AND j.name = f.name
      AND j.submitted_at > f.last_failed_at - interval '1 day'
      AND j.kind = f.kind AND j.status = 'done' AND j.finished_at > f.last_failed_at
      AND (%(before)s::timestamptz IS NULL OR j.finished_at < %(before)s)
      AND f.subject = coalesce(
          CASE WHEN j.kind = 'task' THEN (j.payload -> 'parameters')::text END, '')
    ORDER BY j.submitted_at DESC
    LIMIT 1
) d
WHERE f.project = %(project)s
  AND (%(name)s::text IS NULL OR (f.kind = %(kind)s AND f.name = %(name)s))

-- name: forget_failing
-- It is well again; says whether something else of the same name is not.
WITH gone AS (
    DELETE FROM {schema}.failing
    WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s AND subject = %(subject)s
    RETURNING told_at
)
SELECT (SELECT told_at FROM gone),
       EXISTS (SELECT FROM {schema}.failing
               WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s
                 AND subject <> %(subject)s)

-- name: has_task_states
-- Whether anything can be disabled in this control plane.
SELECT to_regclass(%(table)s) IS NOT NULL

-- name: list_disabled
-- What is disabled now.
SELECT name, parameters_digest, disabled_at, disabled_until::text, cardinality(failures)
FROM {schema}.task_states
WHERE project = %(project)s AND disabled_at IS NOT NULL AND disabled_until > now()

-- name: add_notice
-- A message for one channel; what has been said is not said again.
INSERT INTO {schema}.notices (notice_id, channel, project, name, document)
VALUES (%(notice_id)s, %(channel)s, %(project)s, %(name)s, %(document)s)
ON CONFLICT (notice_id, channel) DO NOTHING

-- name: take_due
-- A message that is due, for whoever sends it; if that one dies, another tries after the lease.
-- What is told of one name is told in order.
UPDATE {schema}.notices n
SET tries = n.tries + 1, try_at = now() + %(lease)s * interval '1 second'
FROM (SELECT w.notice_id, w.channel FROM {schema}.notices w
      WHERE w.project = %(project)s AND w.ended_at IS NULL AND w.try_at <= now()
        AND w.channel <> ALL(%(without)s::text[])
        AND NOT EXISTS (SELECT FROM {schema}.notices o
                        WHERE o.project = w.project AND o.ended_at IS NULL
                          AND o.channel = w.channel AND o.name = w.name
                          AND o.created_at < w.created_at)
      ORDER BY w.created_at
      LIMIT 1
      FOR UPDATE OF w SKIP LOCKED) due
WHERE n.notice_id = due.notice_id AND n.channel = due.channel
RETURNING n.notice_id, n.channel, n.document, n.tries,
          extract(epoch FROM now() - n.created_at)::float8

-- name: end_notice
-- It has arrived, or nobody tries any more.
UPDATE {schema}.notices SET ended_at = now(), outcome = %(outcome)s, error = %(error)s
WHERE notice_id = %(notice_id)s AND channel = %(channel)s AND ended_at IS NULL

-- name: put_off_notice
-- It did not arrive; once more later.
UPDATE {schema}.notices
SET try_at = now() + %(delay)s * interval '1 second', error = %(error)s
WHERE notice_id = %(notice_id)s AND channel = %(channel)s AND ended_at IS NULL

-- name: prune_notices
-- Forget messages that ended long ago, and what failed long ago and was never tried again.
WITH forgotten AS (
    DELETE FROM {schema}.failing
    WHERE project = %(project)s
      AND last_failed_at < now() - %(older_than)s * interval '1 second'
)
DELETE FROM {schema}.notices
WHERE project = %(project)s AND ended_at IS NOT NULL
  AND created_at < now() - %(older_than)s * interval '1 second'
