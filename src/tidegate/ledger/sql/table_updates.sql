-- table_updates(update_id text, target_table text, inserted timestamp): one row per load that is in.

-- name: create_table
-- The marker table; a Luigi-made one has update_id alone as its key and is taken as it is.
CREATE TABLE IF NOT EXISTS {markers} (
    update_id    text NOT NULL,
    target_table text NOT NULL,
    inserted     timestamptz DEFAULT now(),
    PRIMARY KEY (update_id, target_table)
)

-- name: marker_exists
-- Whether a load is in; a marker without a table name counts for every table, as in Luigi.
SELECT EXISTS (
    SELECT FROM {markers}
    WHERE update_id = %(update_id)s
      AND (target_table = ANY(%(targets)s) OR target_table IS NULL)
)

-- name: insert_marker
-- Record a load inside its own transaction, stamped by the database.
INSERT INTO {markers} (update_id, target_table) VALUES (%(update_id)s, %(target)s)
ON CONFLICT DO NOTHING

-- name: insert_marker_stamped
-- Record a load inside its own transaction, stamped by the client.
INSERT INTO {markers} (update_id, target_table, inserted)
VALUES (%(update_id)s, %(target)s, %(inserted)s)
ON CONFLICT DO NOTHING

-- name: list_markers
-- The newest markers, of one table or of all; those that count for a table are those that exist.
SELECT update_id, target_table, inserted::text
FROM {markers}
WHERE %(targets)s::text[] IS NULL OR target_table = ANY(%(targets)s) OR target_table IS NULL
ORDER BY inserted DESC NULLS LAST, update_id
LIMIT %(limit)s

-- name: delete_marker
-- Forget one load.
DELETE FROM {markers}
WHERE update_id = %(update_id)s AND (%(target)s::text IS NULL OR target_table = %(target)s)
RETURNING target_table

-- name: delete_markers_of_pipeline
-- Forget every load that a pipeline's log names.
DELETE FROM {markers} m
USING {schema}.watermark_log l
WHERE l.update_id = m.update_id
  AND l.pipeline_name = %(pipeline)s AND l.table_name = %(table)s
  AND m.target_table = %(table)s
