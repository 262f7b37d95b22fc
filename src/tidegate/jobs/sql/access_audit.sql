-- access_audit(id, project, at, actor, action, object, outcome, job_id, detail)

-- name: record_access
-- Who changed what, or tried to, and what became of it.
INSERT INTO {schema}.access_audit (project, actor, action, object, outcome, job_id, detail)
VALUES (%(project)s, %(actor)s, %(action)s, %(object)s, %(outcome)s, %(job_id)s, %(detail)s)

-- name: list_access
-- The newest lines of a project first, those before one where a list goes on.
SELECT id, at, actor, action, object, outcome, job_id, detail
FROM {schema}.access_audit
WHERE project = %(project)s AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC
LIMIT %(limit)s

-- name: prune_access
-- Forget lines of a project that are older than this, some at a time.
DELETE FROM {schema}.access_audit WHERE id IN (
    SELECT id FROM {schema}.access_audit
    WHERE project = %(project)s AND at < now() - %(older_than)s * interval '1 second'
    ORDER BY at LIMIT %(limit)s)
