-- workers(worker_id, host, pid, version, lock_key, started_at, beat_at, project, command, kinds,
--         concurrency, versions)

-- name: register_worker
-- Announce a worker whose session already holds its advisory lock.
INSERT INTO {schema}.workers
    (worker_id, host, pid, version, lock_key, project, command, kinds, concurrency, versions)
VALUES (%(worker_id)s, %(host)s, %(pid)s, %(version)s, %(lock_key)s, %(project)s, %(command)s,
        %(kinds)s, %(concurrency)s, %(versions)s)

-- name: forget_worker
-- A worker leaves in good order.
DELETE FROM {schema}.workers WHERE worker_id = %(worker_id)s

-- name: prune_workers
-- Workers that hold nothing and have not been heard of for a day.
DELETE FROM {schema}.workers w
WHERE beat_at < now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM {schema}.job_queue q WHERE q.claimed_by = w.worker_id)

-- name: list_workers
-- Every worker on the register, what it holds, and whether its session is there.
SELECT w.worker_id, w.host, w.pid, w.project, w.command, w.kinds, w.concurrency, w.version,
       w.versions, w.started_at, w.beat_at, now() - w.beat_at,
       (SELECT count(*) FROM {schema}.job_queue q WHERE q.claimed_by = w.worker_id),
       EXISTS (
           SELECT FROM pg_locks l
           WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
             AND l.objsubid = 1
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND l.classid::bigint = ((w.lock_key >> 32) & 4294967295)
             AND l.objid::bigint = (w.lock_key & 4294967295))
FROM {schema}.workers w
ORDER BY w.started_at, w.worker_id
