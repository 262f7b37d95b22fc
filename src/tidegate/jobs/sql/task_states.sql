-- task_states(project, name, parameters_digest, failures, disabled_at, disabled_until, disabled_by,
--             enabled_at, enabled_by)

-- name: get_disabled
-- Until when something is disabled, if it is at this moment.
SELECT disabled_at, disabled_until, disabled_by, cardinality(failures)
FROM {schema}.task_states
WHERE project = %(project)s AND name = %(name)s AND parameters_digest = %(digest)s
  AND disabled_until > %(now)s

-- name: list_failures
-- When jobs of a name, or of one run of a task, failed of late, or were known to, since it was last
-- enabled; what only waited for another that failed has no attempt.
SELECT DISTINCT f.at
FROM (SELECT j.finished_at AS at FROM {schema}.jobs j
      WHERE j.project = %(project)s AND j.name = %(name)s AND j.kind = %(kind)s
        AND j.status = 'failed' AND j.attempt_count > 0 AND j.finished_at > %(since)s
        AND j.submitted_at > %(since)s - interval '7 days'
        AND (%(update_id)s::text IS NULL OR j.payload ->> 'update_id' = %(update_id)s)
      UNION ALL
      SELECT unnest(s.failures) FROM {schema}.task_states s
      WHERE s.project = %(project)s AND s.name = %(name)s AND s.parameters_digest = %(digest)s) f
LEFT JOIN {schema}.task_states s
    ON s.project = %(project)s AND s.name = %(name)s AND s.parameters_digest = %(digest)s
WHERE f.at > %(since)s AND f.at <= %(now)s
  AND f.at > coalesce(greatest(s.enabled_at, s.disabled_until), '-infinity')
ORDER BY f.at

-- name: disable
-- It failed too often: nothing is queued until then.
INSERT INTO {schema}.task_states AS s
    (project, name, parameters_digest, failures, disabled_at, disabled_until, disabled_by)
VALUES (%(project)s, %(name)s, %(digest)s, %(failures)s, %(now)s, %(until)s, %(actor)s)
ON CONFLICT (project, name, parameters_digest) DO UPDATE
SET failures = excluded.failures, disabled_at = excluded.disabled_at,
    disabled_until = excluded.disabled_until, disabled_by = excluded.disabled_by

-- name: enable
-- Whatever was disabled of this name, or of this group, may be queued again; what failed before
-- does not count.
UPDATE {schema}.task_states
SET disabled_until = NULL, disabled_at = NULL, disabled_by = NULL,
    failures = ARRAY[]::timestamptz[], enabled_at = clock_timestamp(), enabled_by = %(actor)s
WHERE project = %(project)s AND (name = %(name)s OR starts_with(name, %(name)s || '.'))
  AND disabled_until > clock_timestamp()
RETURNING parameters_digest
