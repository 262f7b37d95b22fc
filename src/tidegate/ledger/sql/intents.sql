-- intents(target_table, update_id, attempt_id, …): loads that may or may not be in main.

-- name: note_intent
-- Say what is about to be published.
INSERT INTO {schema}.intents
    (target_table, update_id, attempt_id, fence, base_snapshot_id, snapshot_id, move, repeatable)
VALUES (%(table)s, %(update_id)s, %(attempt_id)s, %(fence)s, %(base)s, %(snapshot)s, %(move)s,
        %(repeatable)s)
ON CONFLICT (target_table, update_id, attempt_id) DO UPDATE
SET fence = excluded.fence, base_snapshot_id = excluded.base_snapshot_id,
    snapshot_id = excluded.snapshot_id, move = excluded.move, repeatable = excluded.repeatable,
    abandoned = false, noted_at = now()

-- name: list_intents
-- What is not settled for a table, oldest first; what was given up may still turn up.
SELECT update_id, attempt_id, fence, base_snapshot_id, snapshot_id, move, repeatable, abandoned
FROM {schema}.intents WHERE target_table = %(table)s
ORDER BY noted_at, attempt_id

-- name: forget_intents
-- Whatever loads of a pipeline were about to be published, they are forgotten.
DELETE FROM {schema}.intents
WHERE target_table = %(table)s AND move ->> 'pipeline' = %(pipeline)s

-- name: forget_own_intents
-- The same, of many pipelines and their tables.
DELETE FROM {schema}.intents
WHERE (move ->> 'pipeline', target_table) IN (
    SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]))

-- name: settle_intents
-- A load is in and recorded, whichever attempt it was.
DELETE FROM {schema}.intents WHERE target_table = %(table)s AND update_id = %(update_id)s

-- name: abandon_intent
-- It is not in, and its branch is gone.
UPDATE {schema}.intents SET abandoned = true
WHERE target_table = %(table)s AND update_id = %(update_id)s AND attempt_id = %(attempt_id)s
