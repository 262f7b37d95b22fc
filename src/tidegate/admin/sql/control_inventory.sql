-- What a control database holds of one project, for taking it out.

-- name: list_projects
-- Whose jobs, schedules and history there are.
SELECT project FROM {schema}.jobs UNION SELECT project FROM {schema}.schedules
UNION SELECT project FROM {schema}.tasks ORDER BY 1

-- name: list_syncs
-- Which project has run which sync, and what that locked; removing one is not running it.
SELECT DISTINCT project, name, resource FROM {schema}.jobs
WHERE kind = %(kind)s AND payload ->> 'command' IS DISTINCT FROM 'tidegate remove'

-- name: list_observed
-- Pipelines of which something was observed.
SELECT DISTINCT pipeline FROM {schema}.cursor_observations ORDER BY 1

-- name: list_claimed
-- Jobs that an attempt holds, of one project or of all.
SELECT j.job_id, j.name, j.status, q.attempt_id, w.host, w.pid, q.claimed_at, j.payload
FROM {schema}.job_queue q
JOIN {schema}.jobs j USING (job_id)
LEFT JOIN {schema}.workers w ON w.worker_id = q.claimed_by
WHERE q.claimed_by IS NOT NULL AND (%(project)s::text IS NULL OR j.project = %(project)s)
ORDER BY q.claimed_at

-- name: count_rows_of_project
-- Jobs, audit lines, observations, history and notices of a project.
SELECT (SELECT count(*) FROM {schema}.jobs WHERE project = %(project)s),
       (SELECT count(*) FROM {schema}.job_audit a JOIN {schema}.jobs j USING (job_id)
        WHERE j.project = %(project)s),
       (SELECT count(*) FROM {schema}.cursor_observations
        WHERE pipeline = ANY(%(pipelines)s)),
       (SELECT count(*) FROM {schema}.tasks WHERE project = %(project)s),
       (SELECT count(*) FROM {schema}.notices WHERE project = %(project)s)

-- name: delete_audit_of_project
-- Forget what happened to the jobs of a project; this comes first, while the jobs are there.
DELETE FROM {schema}.job_audit a USING {schema}.jobs j
WHERE j.job_id = a.job_id AND j.project = %(project)s

-- name: delete_jobs_of_project
-- Forget the jobs of a project with their attempts, queue and locks.
WITH queued AS (
    DELETE FROM {schema}.job_queue WHERE project = %(project)s
)
DELETE FROM {schema}.jobs WHERE project = %(project)s

-- name: delete_observations_of_project
-- Forget what was observed for a project.
DELETE FROM {schema}.cursor_observations
WHERE pipeline = ANY(%(pipelines)s)

-- name: delete_history_of_project
-- Forget what a project has run.
WITH own AS (
    DELETE FROM {schema}.tasks WHERE project = %(project)s RETURNING id, recorded_at
), parameters AS (
    DELETE FROM {schema}.task_parameters WHERE project = %(project)s
)
DELETE FROM {schema}.task_events e USING own
WHERE e.task_id = own.id AND e.recorded_at = own.recorded_at

-- name: delete_notices_of_project
-- Forget what a project has told of its failures, and what it would have.
WITH failures AS (
    DELETE FROM {schema}.job_failures WHERE project = %(project)s
), failing AS (
    DELETE FROM {schema}.failing WHERE project = %(project)s
)
DELETE FROM {schema}.notices WHERE project = %(project)s

-- name: delete_schedules_of_project
-- Forget what a project has queued by itself, what it limits, and which of its tasks are done.
WITH ticks AS (
    DELETE FROM {schema}.schedule_ticks WHERE project = %(project)s
), limits AS (
    DELETE FROM {schema}.resource_limits WHERE project = %(project)s
), states AS (
    DELETE FROM {schema}.task_states WHERE project = %(project)s
), markers AS (
    DELETE FROM {schema}.task_markers WHERE project = %(project)s
)
DELETE FROM {schema}.schedules WHERE project = %(project)s
