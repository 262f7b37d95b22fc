-- watermark_log(id, pipeline_name, table_name, generation, version, old_watermark, new_watermark,
--               rows, update_id, attempt_id, fence, moved_by, reason, moved_at)

-- name: append_move
-- Write down one move of a watermark, in the transaction that makes it.
INSERT INTO {schema}.watermark_log
    (pipeline_name, table_name, generation, version, old_watermark, new_watermark, rows,
     update_id, attempt_id, fence, moved_by, reason)
VALUES (%(pipeline)s, %(table)s, %(generation)s, %(version)s, %(old)s, %(new)s, %(rows)s,
        %(update_id)s, %(attempt_id)s, %(fence)s, %(moved_by)s, %(reason)s)

-- name: list_moves
-- The latest moves of one watermark.
SELECT moved_at, generation, version, old_watermark, new_watermark, rows, update_id, moved_by,
       reason
FROM {schema}.watermark_log
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
ORDER BY id DESC
LIMIT %(limit)s

-- name: count_put_in
-- How many rows the loads of a table put in since it was last loaded whole, whoever made them.
SELECT coalesce(sum(rows), 0)::bigint FROM {schema}.watermark_log l
WHERE table_name = %(table)s AND id >= coalesce(
    (SELECT max(id) FROM {schema}.watermark_log f
     WHERE f.table_name = l.table_name AND f.pipeline_name = l.pipeline_name
       AND f.reason = 'load full'), 0)

-- name: has_moved
-- Whether an attempt is named by a move.
SELECT EXISTS (SELECT FROM {schema}.watermark_log
               WHERE table_name = %(table)s AND attempt_id = %(attempt_id)s)

-- name: delete_moves
-- Forget a pipeline's log.
DELETE FROM {schema}.watermark_log
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s

-- name: find_carriers
-- The moves that may have brought a row with this cursor value, the latest first: those that passed
-- it, parts of its tie, and loads that read again what lies below the watermark. A repair and a
-- backfill do not move it, and may have brought any row.
SELECT update_id, attempt_id, moved_at, moved_by, reason, generation, old_watermark, new_watermark
FROM {schema}.watermark_log l
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
  AND CASE
        WHEN reason IN ('load repair', 'load backfill') AND update_id IS NOT NULL
            THEN reason = 'load repair' OR %(value)s::{type} IS NOT NULL
        WHEN reason = 'load nulls' AND update_id IS NOT NULL THEN %(value)s::{type} IS NULL
        WHEN %(value)s::{type} IS NULL THEN reason = 'load full' AND update_id IS NOT NULL
        WHEN reason = 'load full' AND update_id IS NOT NULL
            THEN coalesce(%(value)s::{type} <= new_watermark::{type}, new_watermark IS NULL)
        WHEN reason = 'load lookback' AND update_id IS NOT NULL
            THEN %(lookback)s AND %(value)s::{type} <= new_watermark::{type}
        WHEN reason = 'load tie' AND update_id IS NOT NULL AND new_watermark IS NOT DISTINCT FROM
            old_watermark
            THEN %(value)s::{type} IS NOT DISTINCT FROM %(tie)s::{type} OR EXISTS (
                SELECT FROM {schema}.watermark_log c
                WHERE c.pipeline_name = l.pipeline_name AND c.table_name = l.table_name
                  AND c.generation = l.generation AND c.reason = 'load tie'
                  AND c.old_watermark IS NOT DISTINCT FROM l.old_watermark
                  AND c.new_watermark::{type} = %(value)s::{type})
        ELSE coalesce(%(value)s::{type} > old_watermark::{type}, true)
            AND %(value)s::{type} <= new_watermark::{type}
      END
ORDER BY id DESC
LIMIT 100

-- name: find_load
-- The move that a load made.
SELECT update_id, attempt_id, moved_at, moved_by, reason, generation, old_watermark, new_watermark
FROM {schema}.watermark_log
WHERE update_id = %(update_id)s AND pipeline_name = %(pipeline)s AND table_name = %(table)s
ORDER BY id DESC
LIMIT 1
