-- etl_state(pipeline_name, table_name, high_watermark, cursor_type, generation, version,
--           rows_synced, position, update_id, fence, updated_at, declaration)

-- name: get_state
-- One watermark.
SELECT pipeline_name, table_name, high_watermark, cursor_type, generation, version, rows_synced,
       position, update_id, updated_at, declaration
FROM {schema}.etl_state
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s

-- name: list_states
-- The watermarks of one project.
SELECT pipeline_name, table_name, high_watermark, cursor_type, generation, version, rows_synced,
       position, update_id, updated_at, declaration
FROM {schema}.etl_state
WHERE pipeline_name LIKE %(prefix)s
ORDER BY pipeline_name, table_name

-- name: create_state
-- Make the row that later moves compare against; a full refresh that came first knew no columns.
INSERT INTO {schema}.etl_state AS s (pipeline_name, table_name, cursor_type, declaration)
VALUES (%(pipeline)s, %(table)s, %(cursor_type)s, %(declaration)s)
ON CONFLICT (pipeline_name, table_name) DO UPDATE
SET declaration = s.declaration || jsonb_build_object('columns', excluded.declaration -> 'columns')
WHERE s.declaration ->> 'columns' IS NULL AND excluded.declaration ->> 'columns' IS NOT NULL

-- name: move_state
-- Compare-and-set on version, never down; the cast makes Postgres compare as the cursor does.
-- Snapshots have no order in their numbers: who moves from one to another has looked at the chain.
UPDATE {schema}.etl_state
SET high_watermark = %(value)s, cursor_type = %(cursor_type)s, position = %(position)s,
    version = version + 1, rows_synced = rows_synced + %(rows)s,
    update_id = %(update_id)s, fence = %(fence)s, updated_at = now(),
    declaration = coalesce(%(declaration)s, declaration)
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
  AND version = %(version)s AND generation = %(generation)s
  AND (high_watermark IS NULL OR high_watermark::{type} <= %(value)s::{type}
       OR (NOT %(ordered)s AND %(value)s::text IS NOT NULL))

-- name: recover_state
-- What the target's own loads say, where the ledger is older than the target.
UPDATE {schema}.etl_state
SET high_watermark = %(value)s, position = %(position)s, generation = %(generation)s,
    version = %(version)s, rows_synced = %(rows)s, update_id = %(update_id)s, fence = %(fence)s,
    updated_at = now()
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
  AND version = %(old_version)s AND generation = %(old_generation)s

-- name: reset_state
-- A person's move: a new generation, so that everything replayed is a new load.
UPDATE {schema}.etl_state
SET high_watermark = %(value)s, cursor_type = coalesce(%(cursor_type)s, cursor_type),
    position = NULL, rows_synced = 0, generation = generation + %(generations)s,
    version = version + 1, updated_at = now(),
    declaration = coalesce(%(declaration)s, declaration)
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
RETURNING generation, version

-- name: lock_state
-- Keep a watermark still while a person moves it.
SELECT high_watermark, cursor_type FROM {schema}.etl_state
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
FOR UPDATE

-- name: compare_values
-- How two cursor values are ordered: -1, 0 or 1.
SELECT CASE WHEN %(left)s::{type} < %(right)s::{type} THEN -1
            WHEN %(left)s::{type} = %(right)s::{type} THEN 0 ELSE 1 END,
       (%(left)s::{type})::text

-- name: other_tables
-- The other tables that a pipeline has loaded.
SELECT table_name FROM {schema}.etl_state
WHERE pipeline_name = %(pipeline)s AND table_name <> %(table)s AND version > 0
ORDER BY 1

-- name: other_pipelines
-- The other pipelines that have loaded a table.
SELECT pipeline_name FROM {schema}.etl_state
WHERE table_name = %(table)s AND pipeline_name <> %(pipeline)s AND version > 0
ORDER BY 1

-- name: delete_state
-- Forget a pipeline's watermark.
DELETE FROM {schema}.etl_state
WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s
