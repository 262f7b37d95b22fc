-- tasks(recorded_at, id, job_id, attempt_id, attempt, project, kind, name, parameters,
--       parameters_digest, host, worker_id, status, submitted_at, started_at, finished_at, rows,
--       bytes, metrics, error, traceback)
-- task_events(recorded_at, task_id, at, event, detail)
-- task_parameters(recorded_at, task_id, project, task, name, value)

-- name: record_attempts
-- What the job tables say of these attempts; what was written at their start is made complete, and
-- what has an end stays as it is.
WITH attempted AS (
    SELECT date_trunc('milliseconds', a.started_at) AS recorded_at,
           (lpad(to_hex(floor(extract(epoch FROM a.started_at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(a.attempt_id), 1, 3) || '8' || substr(md5(a.attempt_id), 4, 15))::uuid
           AS id,
           j.job_id, a.attempt_id, j.project, j.kind, j.name, w.host, a.worker_id, j.submitted_at,
           a.started_at, a.error, j.result, a.finished_at, a.outcome,
           -- One that is being cancelled has no end yet: its publish may have been quicker.
           CASE a.outcome WHEN 'cancelled' THEN nullif(j.status, 'running') WHEN 'error'
                THEN 'failed' ELSE a.outcome END AS ended,
           CASE j.kind WHEN 'task' THEN coalesce(j.payload -> 'parameters', jsonb_build_object())
                ELSE j.payload END AS parameters,
           a.outcome IN ('error', 'given back')
           OR a.outcome = 'lost' AND j.finished_at IS DISTINCT FROM a.finished_at AS is_retried,
           (SELECT count(*) FROM {schema}.job_attempts e
            WHERE e.job_id = a.job_id AND e.fence <= a.fence) AS attempt,
           (SELECT max(e.finished_at) FROM {schema}.job_attempts e
            WHERE e.job_id = a.job_id AND e.fence < a.fence) AS given_back_at
    FROM {schema}.job_attempts a
    JOIN {schema}.jobs j USING (job_id)
    LEFT JOIN {schema}.workers w USING (worker_id)
    WHERE a.attempt_id = ANY(%(attempt_ids)s) AND j.kind <> 'noop'
), steps AS (
    SELECT s.* FROM attempted a CROSS JOIN LATERAL (
        SELECT c.attempt_id, c.finished_at, c.action, c.detail
        FROM {schema}.job_actions c
        WHERE a.ended IS NOT NULL AND c.job_id = a.job_id AND c.attempt_id = a.attempt_id
        ORDER BY c.position DESC
        LIMIT %(most_steps)s
    ) s
), written AS (
    INSERT INTO {schema}.tasks AS t
        (recorded_at, id, job_id, attempt_id, attempt, project, kind, name, parameters,
         parameters_digest, host, worker_id, status, submitted_at, started_at, finished_at, rows,
         bytes, metrics, error, traceback)
    SELECT recorded_at, id, job_id, attempt_id, attempt, project, kind, name, parameters,
           left(encode(sha256(convert_to(parameters::text, 'UTF8')), 'hex'), 40), host, worker_id,
           coalesce(ended, 'running'), submitted_at, started_at,
           CASE WHEN ended IS NOT NULL THEN finished_at END,
           CASE WHEN ended = 'done' AND jsonb_typeof(result -> 'rows') = 'number'
                THEN (result ->> 'rows')::numeric::bigint
                ELSE (SELECT sum((s.detail ->> 'rows')::numeric)::bigint FROM steps s
                      WHERE s.attempt_id = a.attempt_id
                        AND jsonb_typeof(s.detail -> 'rows') = 'number') END,
           CASE WHEN ended = 'done' AND jsonb_typeof(coalesce(result -> 'bytes',
                                                             result -> 'removed_bytes')) = 'number'
                THEN coalesce(result ->> 'bytes', result ->> 'removed_bytes')::numeric::bigint END,
           nullif(CASE WHEN ended = 'done' AND jsonb_typeof(result) = 'object'
                       THEN result - ARRAY['fingerprints', 'horizon', 'notes']
                       ELSE jsonb_build_object() END || coalesce(%(metrics)s, jsonb_build_object()),
                  jsonb_build_object()),
           error, %(traceback)s
    FROM attempted a
    ON CONFLICT (recorded_at, id) DO UPDATE
    SET status = EXCLUDED.status, finished_at = EXCLUDED.finished_at, rows = EXCLUDED.rows,
        bytes = EXCLUDED.bytes, metrics = EXCLUDED.metrics, error = EXCLUDED.error,
        traceback = EXCLUDED.traceback, host = coalesce(t.host, EXCLUDED.host)
    WHERE t.status = 'running' AND EXCLUDED.status <> 'running'
), told AS (
    INSERT INTO {schema}.task_events (recorded_at, task_id, at, event, detail)
    SELECT a.recorded_at, a.id, e.at, e.event, e.detail
    FROM attempted a CROSS JOIN LATERAL (
        SELECT coalesce(a.given_back_at, a.submitted_at), 'pending', NULL::jsonb
        UNION ALL
        SELECT a.started_at, 'started', NULL
        UNION ALL
        SELECT s.finished_at, 'progress', jsonb_build_object('action', s.action) || s.detail
        FROM steps s WHERE s.attempt_id = a.attempt_id
        UNION ALL
        SELECT a.finished_at, a.ended, CASE WHEN a.error IS NOT NULL
                                            THEN jsonb_build_object('error', a.error) END
        WHERE a.ended IS NOT NULL AND a.ended <> 'given back'
        UNION ALL
        SELECT a.finished_at, 'retried', jsonb_build_object('after', a.ended) WHERE a.is_retried
    ) AS e(at, event, detail)
    ON CONFLICT DO NOTHING
)
INSERT INTO {schema}.task_parameters (recorded_at, task_id, project, task, name, value)
SELECT a.recorded_at, a.id, a.project, a.name, p.key, coalesce(p.value, 'null')
FROM attempted a CROSS JOIN LATERAL jsonb_each_text(a.parameters) AS p
ON CONFLICT DO NOTHING

-- name: list_unsettled
-- Attempts that have ended without the history knowing.
SELECT t.attempt_id
FROM {schema}.tasks t
JOIN {schema}.job_attempts a USING (attempt_id)
JOIN {schema}.jobs j ON j.job_id = a.job_id
WHERE t.project = %(project)s AND t.status = 'running'
  AND (a.outcome <> 'cancelled' OR j.status <> 'running')
LIMIT %(limit)s

-- name: list_unsettled_of_job
-- Attempts at one job that have ended without the history knowing.
SELECT t.attempt_id
FROM {schema}.tasks t
JOIN {schema}.job_attempts a USING (attempt_id)
JOIN {schema}.jobs j ON j.job_id = a.job_id
WHERE t.job_id = %(job_id)s AND t.status = 'running'
  AND (a.outcome <> 'cancelled' OR j.status <> 'running')

-- name: list_partitions
-- The months of a table, as names of partitions.
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = %(table)s::regclass

-- name: list_tasks
-- The newest tasks that fit.
SELECT {columns} FROM {schema}.tasks t
WHERE {conditions}
ORDER BY t.recorded_at DESC, t.id DESC
LIMIT {limit}

-- name: list_by_parameters
-- The newest tasks that were called with these values. The walk goes back through the history: each
-- value in turn says where it was last given, no later than the one before, and the tasks say which
-- of them was the last to fit; where all say the same, one is found. So the rarest of the conditions
-- sets the pace, whichever that is, and the walk ends when there are enough.
WITH RECURSIVE walk(recorded_at, id, is_met, found) AS (
    SELECT 'infinity'::timestamptz, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid, false, 0
    UNION ALL
    SELECT t.recorded_at, t.id, p.id = t.id, w.found + (p.id = t.id)::int
    FROM walk w
{steps}
    WHERE w.found < {limit}
)
SELECT {columns}
FROM walk w
CROSS JOIN LATERAL (
    SELECT t.* FROM {schema}.tasks t
    WHERE w.is_met AND t.recorded_at = w.recorded_at AND t.id = w.id
    LIMIT 1
) t
ORDER BY t.recorded_at DESC, t.id DESC

-- name: step_back_to_parameter
-- Where a value was last given, no later than the place before; where all have met is left behind.
-- A part of list_by_parameters.
CROSS JOIN LATERAL (
    SELECT {side}.recorded_at, {side}.task_id AS id FROM {schema}.task_parameters {side}
    WHERE {conditions}
      AND {side}.recorded_at <= {before}.recorded_at
      AND ({side}.recorded_at, {side}.task_id) <= ({before}.recorded_at, {before}.id)
      AND NOT (w.is_met AND {side}.task_id = w.id)
    ORDER BY {side}.recorded_at DESC, {side}.task_id DESC
    LIMIT 1
) {side}

-- name: step_back_to_task
-- The last task that fits, no later than the place before. A part of list_by_parameters.
CROSS JOIN LATERAL (
    SELECT t.recorded_at, t.id FROM {schema}.tasks t
    WHERE {conditions}
      AND t.recorded_at <= {before}.recorded_at
      AND (t.recorded_at, t.id) <= ({before}.recorded_at, {before}.id)
    ORDER BY t.recorded_at DESC, t.id DESC
    LIMIT 1
) t

-- name: list_task_events
-- What happened to one task, in order.
SELECT at, event, detail FROM {schema}.task_events
WHERE recorded_at = %(recorded_at)s AND task_id = %(id)s
ORDER BY at, event

-- name: known_by_walking
-- Everything that ran: from one to the next over the index, however long the history is. A part of
-- trends.
(SELECT t.kind, t.name FROM {schema}.tasks t
 WHERE t.project = %(project)s AND t.recorded_at >= %(since)s
 ORDER BY t.kind, t.name LIMIT 1)
UNION ALL
SELECT n.kind, n.name FROM known k CROSS JOIN LATERAL (
    SELECT t.kind, t.name FROM {schema}.tasks t
    WHERE t.project = %(project)s AND (t.kind, t.name) > (k.kind, k.name)
      AND t.recorded_at >= %(since)s
    ORDER BY t.kind, t.name LIMIT 1) n

-- name: known_by_name
-- Whatever ran of these names, in the order of the index that says so. A part of trends.
SELECT k.kind, n.name
FROM unnest(%(kinds)s::text[]) AS k(kind) CROSS JOIN unnest(%(names)s::text[]) AS n(name)
CROSS JOIN LATERAL (
    SELECT FROM {schema}.tasks t
    WHERE t.project = %(project)s AND t.kind = k.kind AND t.name = n.name
      AND t.recorded_at >= %(since)s
    ORDER BY t.status, t.recorded_at DESC LIMIT 1
) t

-- name: list_trends
-- How long the last runs took that were done, and how often it failed in each of the last weeks.
WITH RECURSIVE known AS MATERIALIZED (
{known}
)
SELECT k.kind, k.name,
       ARRAY(SELECT extract(epoch FROM t.finished_at - t.started_at)::float8
             FROM {schema}.tasks t
             WHERE t.project = %(project)s AND t.kind = k.kind AND t.name = k.name
               AND t.status = 'done' AND t.recorded_at >= %(since)s
             ORDER BY t.recorded_at DESC LIMIT %(runs)s),
       ARRAY(SELECT coalesce(f.failures, 0)
             FROM generate_series(0, %(weeks)s - 1) AS w(ago)
             LEFT JOIN (
                 SELECT floor(extract(epoch FROM %(now)s - t.recorded_at) / 604800)::int AS ago,
                        count(*) AS failures
                 FROM {schema}.tasks t
                 WHERE t.project = %(project)s AND t.kind = k.kind AND t.name = k.name
                   AND t.status IN ('failed', 'lost') AND t.recorded_at >= %(since)s
                 GROUP BY 1
             ) f USING (ago)
             ORDER BY ago DESC),
       l.status, l.started_at
FROM known k
CROSS JOIN LATERAL (
    SELECT t.status, t.started_at FROM {schema}.tasks t
    WHERE t.project = %(project)s AND t.name = k.name AND t.kind = k.kind
      AND t.recorded_at >= %(since)s
    ORDER BY t.recorded_at DESC, t.id DESC LIMIT 1
) l
ORDER BY k.kind, k.name
