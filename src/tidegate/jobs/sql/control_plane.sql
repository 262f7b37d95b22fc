-- control_plane(only_row, control_id, created_at, draining_since, draining_by): one row.

-- name: start_draining
-- Take no new jobs in; what is queued is worked off. No row when it drains already.
UPDATE {schema}.control_plane SET draining_since = now(), draining_by = %(actor)s
WHERE draining_since IS NULL
RETURNING draining_since

-- name: stop_draining
-- Take jobs in again.
UPDATE {schema}.control_plane SET draining_since = NULL, draining_by = NULL
WHERE draining_since IS NOT NULL
RETURNING only_row

-- name: get_draining
-- Since when nothing is taken in, and by whose word.
SELECT draining_since, draining_by FROM {schema}.control_plane WHERE draining_since IS NOT NULL
