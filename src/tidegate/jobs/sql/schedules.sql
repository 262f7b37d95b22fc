-- schedules(project, name, kind, cron, timezone, catch_up, parameters, paused_at, paused_by,
--           paused_reason, seen_until, declared_at, removed_at)
-- schedule_ticks(project, name, tick, job_id, outcome, detail, noted_at, noted_by)

-- name: clock
-- The moment by the one clock that all schedulers share.
SELECT clock_timestamp()

-- name: declare_schedule
-- As it is declared now. One that is new, or due at other times than before, begins at `now`; one
-- that is unchanged is not written.
INSERT INTO {schema}.schedules AS s
    (project, name, kind, cron, timezone, catch_up, parameters, seen_until)
VALUES (%(project)s, %(name)s, %(kind)s, %(cron)s, %(timezone)s, %(catch_up)s, %(parameters)s,
        %(now)s)
ON CONFLICT (project, name) DO UPDATE
SET kind = excluded.kind, cron = excluded.cron, timezone = excluded.timezone,
    catch_up = excluded.catch_up, parameters = excluded.parameters, declared_at = now(),
    removed_at = NULL,
    seen_until = CASE WHEN s.removed_at IS NULL AND (s.cron, s.timezone)
                           = (excluded.cron, excluded.timezone)
                      THEN s.seen_until ELSE greatest(s.seen_until, excluded.seen_until) END
WHERE s.removed_at IS NOT NULL
   OR (s.kind, s.cron, s.timezone, s.catch_up, s.parameters)
      <> (excluded.kind, excluded.cron, excluded.timezone, excluded.catch_up, excluded.parameters)

-- name: remove_schedules
-- What is declared no more; whether it was paused is remembered.
UPDATE {schema}.schedules SET removed_at = now()
WHERE project = %(project)s AND removed_at IS NULL AND NOT name = ANY(%(names)s::text[])

-- name: list_schedules
-- Each schedule of a project, its last tick, and whether it is disabled.
SELECT s.name, s.kind, s.cron, s.timezone, s.catch_up, s.paused_at, s.paused_by, s.paused_reason,
       s.seen_until, t.tick, t.outcome, t.job_id, j.status, d.disabled_until, d.disabled_by
FROM {schema}.schedules s
LEFT JOIN LATERAL (
    SELECT tick, outcome, job_id FROM {schema}.schedule_ticks t
    WHERE t.project = s.project AND t.name = s.name
    ORDER BY tick DESC LIMIT 1) t ON true
LEFT JOIN {schema}.jobs j ON j.job_id = t.job_id
LEFT JOIN LATERAL (
    SELECT disabled_until, disabled_by FROM {schema}.task_states d
    WHERE d.project = s.project AND d.name = s.name AND d.disabled_until > now()
    ORDER BY disabled_until DESC LIMIT 1) d ON true
WHERE s.project = %(project)s AND s.removed_at IS NULL
ORDER BY s.name

-- name: seen_until
-- Up to when the schedules that are neither paused nor removed have been seen to.
SELECT name, seen_until FROM {schema}.schedules
WHERE project = %(project)s AND removed_at IS NULL AND paused_at IS NULL

-- name: lock_schedule
-- A schedule for whoever sees to its ticks; no row when another does, has done so, or it is paused.
SELECT name FROM {schema}.schedules
WHERE project = %(project)s AND name = %(name)s AND seen_until = %(seen_until)s
  AND removed_at IS NULL AND paused_at IS NULL
FOR UPDATE SKIP LOCKED

-- name: move_seen
-- The ticks up to this moment have been seen to.
UPDATE {schema}.schedules SET seen_until = greatest(seen_until, %(until)s)
WHERE project = %(project)s AND name = %(name)s

-- name: note_tick
-- What became of a tick; no row when it was noted before.
INSERT INTO {schema}.schedule_ticks (project, name, tick, job_id, outcome, detail, noted_by)
VALUES (%(project)s, %(name)s, %(tick)s, %(job_id)s, %(outcome)s, %(detail)s, %(actor)s)
ON CONFLICT (project, name, tick) DO NOTHING
RETURNING tick

-- name: has_tick
-- Whether a tick was noted before.
SELECT EXISTS (SELECT FROM {schema}.schedule_ticks
               WHERE project = %(project)s AND name = %(name)s AND tick = %(tick)s)

-- name: pause_schedule
-- Queue nothing for it; no row when it is paused already.
UPDATE {schema}.schedules
SET paused_at = now(), paused_by = %(actor)s, paused_reason = %(reason)s
WHERE project = %(project)s AND name = %(name)s AND removed_at IS NULL AND paused_at IS NULL
RETURNING name

-- name: resume_schedule
-- Queue for it again; no row when it was not paused.
UPDATE {schema}.schedules SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE project = %(project)s AND name = %(name)s AND removed_at IS NULL AND paused_at IS NOT NULL
RETURNING name

-- name: prune_ticks
-- Forget ticks of long ago; the newest of each schedule stays.
DELETE FROM {schema}.schedule_ticks t
WHERE t.noted_at < now() - %(older_than)s * interval '1 second'
  AND t.tick < (SELECT max(newest.tick) FROM {schema}.schedule_ticks newest
                WHERE newest.project = t.project AND newest.name = t.name)
