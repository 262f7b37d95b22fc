-- What a ledger holds of one pipeline, across etl_state, watermark_log, fences and the markers.

-- name: find_tables
-- The tables that a pipeline has loaded or was set to load.
SELECT table_name FROM {schema}.etl_state WHERE pipeline_name = %(pipeline)s
UNION
SELECT table_name FROM {schema}.watermark_log WHERE pipeline_name = %(pipeline)s
ORDER BY 1

-- name: count_holdings
-- Watermarks, moves and fences of a pipeline's table, and who else loads the same table.
SELECT (SELECT count(*) FROM {schema}.etl_state
        WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s),
       (SELECT count(*) FROM {schema}.watermark_log
        WHERE pipeline_name = %(pipeline)s AND table_name = %(table)s),
       (SELECT count(*) FROM {schema}.fences WHERE resource = %(table)s),
       ARRAY(SELECT pipeline_name FROM {schema}.etl_state
             WHERE table_name = %(table)s AND pipeline_name <> %(pipeline)s ORDER BY 1)

-- name: count_markers
-- Markers of the loads that a pipeline's log names.
SELECT count(*) FROM {markers} m
WHERE m.target_table = %(table)s AND EXISTS (
    SELECT FROM {schema}.watermark_log l
    WHERE l.update_id = m.update_id
      AND l.pipeline_name = %(pipeline)s AND l.table_name = %(table)s)

-- name: pipelines_of_load
-- Whose load an update_id was.
SELECT DISTINCT pipeline_name FROM {schema}.watermark_log
WHERE update_id = %(update_id)s AND table_name = %(table)s
ORDER BY 1
