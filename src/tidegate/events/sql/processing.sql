-- Raw events on their way to facts: claimed, settled and noted in one transaction.

-- name: claim_events
-- The events that waited longest and that nobody holds; they are held until the transaction ends.
SELECT id FROM {raw}
WHERE status = 'pending'
ORDER BY received_at, id
LIMIT %(size)s
FOR UPDATE SKIP LOCKED

-- name: count_pending
-- Events that wait, whoever may hold them.
SELECT count(*) FROM {raw} WHERE status = 'pending'

-- name: missing_months
-- Which of these months (by their first moment) have no partition of the facts.
SELECT m.month
FROM unnest(%(months)s::timestamptz[]) AS m (month)
WHERE NOT EXISTS (
    SELECT
    FROM pg_class f
    JOIN pg_namespace n ON n.oid = f.relnamespace
    JOIN pg_inherits i ON i.inhparent = f.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) AS b (bound)
    CROSS JOIN LATERAL regexp_match(b.bound, '^FOR VALUES FROM \((.*)\) TO \((.*)\)$') AS r (ends)
    WHERE n.nspname = %(schema)s AND f.relname = %(name)s
      AND (b.bound = 'DEFAULT'
           OR (CASE r.ends[1] WHEN 'MINVALUE' THEN '-infinity'
               ELSE trim(BOTH '''' FROM r.ends[1])::timestamptz END <= m.month
               AND CASE r.ends[2] WHEN 'MAXVALUE' THEN 'infinity'
                   ELSE trim(BOTH '''' FROM r.ends[2])::timestamptz END > m.month))
)
ORDER BY m.month

-- name: note_batch
-- What a batch did, for throughput; its number of transaction tells later whether it committed.
INSERT INTO {schema}.event_batches
    (attempt_id, started_at, claimed, done, failed, facts, left_pending)
VALUES (%(attempt_id)s, now(), %(claimed)s, %(done)s, %(failed)s, %(facts)s, %(left_pending)s)
RETURNING pg_current_xact_id()::text

-- name: raise_changes
-- Facts or dimensions changed; the views are older than that.
UPDATE {schema}.event_changes SET changes = changes + 1

-- name: prune_batches
-- Batches whose throughput nobody asks for any more; what another session prunes is left to it.
DELETE FROM {schema}.event_batches WHERE id IN (
    SELECT id FROM {schema}.event_batches
    WHERE committed_at < now() - interval '7 days'
    LIMIT 10000 FOR UPDATE SKIP LOCKED
)

-- name: refuse_staged
-- Staged events that the tables refuse, each with its reason; they fail now.
UPDATE {staged} s SET error = m.reason, event_hash = NULL
FROM unnest(%(places)s::integer[], %(reasons)s::text[]) AS m (place, reason)
WHERE s.place = m.place
