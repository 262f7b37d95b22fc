-- fences(resource, control_id, token, attempt_id): which attempt may publish into a table.

-- name: raise_fence
-- Take the table for an attempt; an older token or another control plane gets no row back.
INSERT INTO {schema}.fences AS f (resource, control_id, token, attempt_id)
VALUES (%(resource)s, %(control_id)s, %(token)s, %(attempt_id)s)
ON CONFLICT (resource) DO UPDATE
SET token = excluded.token, attempt_id = excluded.attempt_id
WHERE f.control_id = excluded.control_id
  AND (f.token < excluded.token
       OR (f.token = excluded.token AND f.attempt_id = excluded.attempt_id))
RETURNING token

-- name: get_fence
-- Who holds the fence now.
SELECT control_id, token, attempt_id FROM {schema}.fences WHERE resource = %(resource)s

-- name: lock_fence
-- The fence row, alone, held until the publish commits.
SELECT control_id, token, attempt_id FROM {schema}.fences
WHERE resource = %(resource)s FOR UPDATE

-- name: end_publisher
-- End the database session of a replaced attempt that still holds the fence row.
SELECT pid, pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE application_name = %(application)s AND datname = current_database()
  AND pid <> pg_backend_pid()

-- name: seize_fence
-- Give a table to this control plane, on a person's word.
UPDATE {schema}.fences SET control_id = %(control_id)s WHERE resource = %(resource)s

-- name: delete_fence
-- Forget a table's fence.
DELETE FROM {schema}.fences WHERE resource = %(resource)s
