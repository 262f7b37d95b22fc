-- task_markers(project, update_id, name, parameters, job_id, inserted): side effects that are done.

-- name: task_marker_exists
-- Whether a task without a target is done.
SELECT EXISTS (SELECT FROM {schema}.task_markers
               WHERE project = %(project)s AND update_id = %(update_id)s)

-- name: touch_task_marker
-- A task is done, in the transaction that ends its job; who repeats it changes nothing.
INSERT INTO {schema}.task_markers (project, update_id, name, parameters, job_id)
VALUES (%(project)s, %(update_id)s, %(name)s, %(parameters)s, %(job_id)s)
ON CONFLICT (project, update_id) DO NOTHING

-- name: forget_task_marker
-- The task is to be done again.
DELETE FROM {schema}.task_markers WHERE project = %(project)s AND update_id = %(update_id)s
