-- sweeps(project, swept_at, swept_by): when a project was last swept, and by whom.

-- name: note_sweep
-- A project was swept; several sweepers write one row, so none does more than every few seconds.
INSERT INTO {schema}.sweeps AS s (project, swept_by) VALUES (%(project)s, %(swept_by)s)
ON CONFLICT (project) DO UPDATE SET swept_at = now(), swept_by = excluded.swept_by
WHERE s.swept_at < now() - %(apart)s * interval '1 second'

-- name: last_sweep
-- When and by whom, and how many seconds ago.
SELECT swept_at, swept_by, extract(epoch FROM now() - swept_at)::float8 FROM {schema}.sweeps
WHERE project = %(project)s
