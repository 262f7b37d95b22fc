-- Figures from jobs(project, kind, name, status, result, submitted_at, started_at, finished_at).

-- name: rows_per_second
-- How quickly the latest loads of a sync went; NULL when none moved a row.
SELECT (sum(rows) / nullif(sum(seconds), 0))::float8
FROM (
    SELECT (result ->> 'rows')::bigint AS rows,
           extract(epoch FROM finished_at - started_at) AS seconds
    FROM {schema}.jobs
    WHERE project = %(project)s AND kind = %(kind)s AND name = %(name)s
      AND status = 'done' AND (result ->> 'rows')::bigint > 0
    ORDER BY submitted_at DESC
    LIMIT 10
) latest
