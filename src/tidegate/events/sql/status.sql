-- How the events of a project stand; every count has an end.

-- name: read_existing
-- Whether the tables are there, and since when nothing was committed.
SELECT to_regclass(%(raw)s) IS NOT NULL, to_regclass(%(facts)s) IS NOT NULL,
       to_regclass(%(batches)s) IS NOT NULL, to_regclass(%(log)s) IS NOT NULL

-- name: read_backlog
-- What waits, and since when.
SELECT count(*), min(received_at),
       extract(epoch FROM clock_timestamp() - min(received_at))::float8
FROM (SELECT received_at FROM {raw} WHERE status = 'pending'
      ORDER BY received_at, id LIMIT %(most)s) AS waiting

-- name: read_failures
-- Why events failed, of those that were received last: the most frequent reasons first.
SELECT error, count(*), max(processed_at), (array_agg(id ORDER BY received_at DESC))[1],
       sum(count(*)) OVER ()
FROM (SELECT id, error, received_at, processed_at FROM {raw} WHERE status = 'failed'
      ORDER BY received_at DESC, id DESC LIMIT %(most)s) AS failed
GROUP BY error ORDER BY 2 DESC, 1 LIMIT %(reasons)s

-- name: read_throughput
-- What was committed in the last hour, and how long that took.
SELECT count(*), coalesce(sum(done), 0), coalesce(sum(failed), 0), coalesce(sum(facts), 0),
       coalesce(extract(epoch FROM sum(committed_at - started_at)), 0)::float8,
       (SELECT max(committed_at) FROM {schema}.event_batches)
FROM {schema}.event_batches WHERE committed_at > clock_timestamp() - interval '1 hour'

-- name: read_parts
-- The partitions of the facts.
SELECT count(*), min(c.relname), max(c.relname),
       coalesce(sum(pg_total_relation_size(c.oid)), 0)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(facts)s) AND NOT i.inhdetachpending

-- name: read_log
-- What the log says of views.
SELECT mv_name, refreshed_at, extract(epoch FROM duration)::float8, rows, changes, failed_at, error
FROM {log} WHERE mv_name = ANY (%(views)s)

-- name: count_failed
-- How many failed events would be tried again.
SELECT count(*) FROM {raw}
WHERE status = 'failed' AND (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s))
  AND (%(reason)s::text IS NULL OR starts_with(error, %(reason)s))

-- name: retry_failed
-- Some failed events wait again; those that failed since we began do not.
WITH chosen AS (
    SELECT id FROM {raw}
    WHERE status = 'failed' AND (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s))
      AND (%(reason)s::text IS NULL OR starts_with(error, %(reason)s))
      AND (processed_at IS NULL OR processed_at <= %(since)s)
    ORDER BY received_at, id LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
)
UPDATE {raw} r SET status = 'pending', processed_at = NULL, error = NULL
FROM chosen c WHERE r.id = c.id
