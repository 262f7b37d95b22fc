-- job_audit(id, job_id, attempt_id, event, actor, detail, at): who did what; never changed.

-- name: list_audit
-- What happened to a job, in order.
SELECT at, event, actor, attempt_id, detail
FROM {schema}.job_audit
WHERE job_id = %(job_id)s
ORDER BY id
