-- orphan_files(job_id, path, bytes, modified_at, found_at, kept, deleted_at): what a job may delete.

-- name: orphans_before
-- Younger files may belong to somebody who is at work; a job may have been so for days.
SELECT least(
    now() - %(age)s * interval '1 second',
    (SELECT min(j.started_at) FROM {schema}.job_queue q JOIN {schema}.jobs j USING (job_id)
     WHERE q.claimed_at IS NOT NULL) - %(margin)s * interval '1 second')

-- name: note_orphans
-- Candidates, before any of them is deleted; no row when the attempt is stale.
WITH held AS (
    SELECT job_id FROM {schema}.jobs
    WHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s AND status = 'running'
), noted AS (
    INSERT INTO {schema}.orphan_files (job_id, path)
    SELECT h.job_id, p.path FROM held h, unnest(%(paths)s::text[]) AS p(path)
    ON CONFLICT (job_id, path) DO NOTHING
)
SELECT job_id FROM held

-- name: keep_orphans
-- What turned out to be no orphan stays, and why.
UPDATE {schema}.orphan_files SET kept = %(why)s
WHERE job_id = %(job_id)s AND path = ANY(%(paths)s) AND kept IS NULL AND deleted_at IS NULL

-- name: keep_orphans_below
-- The same, of a whole folder.
UPDATE {schema}.orphan_files SET kept = %(why)s
WHERE job_id = %(job_id)s AND starts_with(path, %(folder)s) AND kept IS NULL
  AND deleted_at IS NULL

-- name: next_orphans
-- Some that are still to be deleted, in order.
SELECT path FROM {schema}.orphan_files
WHERE job_id = %(job_id)s AND path > %(after)s AND kept IS NULL AND deleted_at IS NULL
ORDER BY path LIMIT %(limit)s

-- name: mark_orphans_deleted
-- They are gone; what they were is known for those that were still there.
UPDATE {schema}.orphan_files o
SET deleted_at = now(), bytes = g.bytes, modified_at = g.modified_at
FROM unnest(%(paths)s::text[], %(bytes)s::bigint[], %(modified)s::timestamptz[])
    AS g(path, bytes, modified_at)
WHERE o.job_id = %(job_id)s AND o.path = g.path

-- name: count_orphans
-- How many were found, how many are gone and what they weighed, and how many stay.
SELECT count(*), count(deleted_at), coalesce(sum(bytes) FILTER (WHERE deleted_at IS NOT NULL), 0),
       count(kept)
FROM {schema}.orphan_files WHERE job_id = %(job_id)s

-- name: kept_orphans
-- Why files stay, and how many for each reason.
SELECT kept, count(*) FROM {schema}.orphan_files
WHERE job_id = %(job_id)s AND kept IS NOT NULL GROUP BY kept ORDER BY kept

-- name: ended_attempts
-- Which of these attempts are known to have ended.
SELECT attempt_id FROM {schema}.job_attempts
WHERE attempt_id = ANY(%(attempt_ids)s) AND finished_at IS NOT NULL
