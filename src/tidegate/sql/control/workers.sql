-- workers(worker_id, host, pid, version, lock_key, started_at, beat_at)

-- name: register_worker
-- Announce a worker whose session already holds its advisory lock.
INSERT INTO {schema}.workers (worker_id, host, pid, version, lock_key)
VALUES (%(worker_id)s, %(host)s, %(pid)s, %(version)s, %(lock_key)s)

-- name: beat_worker
-- A worker is alive.
UPDATE {schema}.workers SET beat_at = now() WHERE worker_id = %(worker_id)s

-- name: forget_worker
-- A worker leaves in good order.
DELETE FROM {schema}.workers WHERE worker_id = %(worker_id)s

-- name: prune_workers
-- Workers that hold nothing and have not been heard of for a day.
DELETE FROM {schema}.workers w
WHERE beat_at < now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM {schema}.job_queue q WHERE q.claimed_by = w.worker_id)
