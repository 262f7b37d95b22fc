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

-- name: delete_moves
-- Forget a pipeline's log.
DELETE FROM {schema}.watermark_log
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
