-- What a ledger holds of one project, for taking it out. A pipeline is the project's when its name
-- is, and when no other control plane has the fence of its table.

-- name: list_objects
-- Everything that lies in a schema by itself; what belongs to a table is not listed beside it.
SELECT d.classid::regclass::text, d.objid, pg_describe_object(d.classid, d.objid, 0),
       coalesce(c.relname, p.proname, t.typname), c.relkind
FROM pg_depend d
JOIN pg_namespace n ON n.oid = d.refobjid
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
WHERE d.refclassid = 'pg_namespace'::regclass AND d.deptype = 'n' AND n.nspname = %(name)s
  AND NOT EXISTS (SELECT FROM pg_depend o
                  WHERE o.classid = d.classid AND o.objid = d.objid AND o.deptype IN ('a', 'i')
                    AND o.refclassid = 'pg_class'::regclass)
ORDER BY 3

-- name: may_drop_schema
-- Whether a schema is there and this role owns it.
SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = %(name)s

-- name: list_users
-- Pipelines of others, and control planes that hold a fence here.
SELECT DISTINCT pipeline_name, NULL::uuid FROM {schema}.etl_state
UNION
SELECT DISTINCT pipeline_name, NULL::uuid FROM {schema}.watermark_log
UNION
SELECT NULL, control_id FROM {schema}.fences
ORDER BY 1, 2

-- name: count_rows
-- Watermarks, moves and fences of the project.
SELECT (SELECT count(*) FROM {schema}.etl_state s
        WHERE starts_with(s.pipeline_name, %(prefix)s)
          AND position('.' IN substr(s.pipeline_name, length(%(prefix)s) + 1)) = 0
          AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = s.table_name
                          AND f.control_id IS DISTINCT FROM %(control_id)s::uuid)),
       (SELECT count(*) FROM {schema}.watermark_log l
        WHERE starts_with(l.pipeline_name, %(prefix)s)
          AND position('.' IN substr(l.pipeline_name, length(%(prefix)s) + 1)) = 0
          AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = l.table_name
                          AND f.control_id IS DISTINCT FROM %(control_id)s::uuid)),
       (SELECT count(*) FROM {schema}.fences f
        WHERE f.control_id = %(control_id)s::uuid AND NOT EXISTS (
            SELECT FROM {schema}.etl_state s WHERE s.table_name = f.resource
              AND NOT (starts_with(s.pipeline_name, %(prefix)s)
                       AND position('.' IN substr(s.pipeline_name, length(%(prefix)s) + 1)) = 0)))

-- name: count_own_markers
-- Markers of the project's loads, or of all that the log names.
SELECT count(*) FROM {markers} m
WHERE EXISTS (
    SELECT FROM {schema}.watermark_log l
    WHERE l.update_id = m.update_id AND l.table_name = m.target_table
      AND (%(everybody)s OR (
          starts_with(l.pipeline_name, %(prefix)s)
          AND position('.' IN substr(l.pipeline_name, length(%(prefix)s) + 1)) = 0
          AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = l.table_name
                          AND f.control_id IS DISTINCT FROM %(control_id)s::uuid))))

-- name: delete_own_markers
-- Forget those loads; this comes first, while the log still names them.
DELETE FROM {markers} m
WHERE EXISTS (
    SELECT FROM {schema}.watermark_log l
    WHERE l.update_id = m.update_id AND l.table_name = m.target_table
      AND (%(everybody)s OR (
          starts_with(l.pipeline_name, %(prefix)s)
          AND position('.' IN substr(l.pipeline_name, length(%(prefix)s) + 1)) = 0
          AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = l.table_name
                          AND f.control_id IS DISTINCT FROM %(control_id)s::uuid))))

-- name: delete_own_moves
-- Forget the log of the project.
DELETE FROM {schema}.watermark_log l
WHERE starts_with(l.pipeline_name, %(prefix)s)
  AND position('.' IN substr(l.pipeline_name, length(%(prefix)s) + 1)) = 0
  AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = l.table_name
                  AND f.control_id IS DISTINCT FROM %(control_id)s::uuid)

-- name: delete_own_states
-- Forget the watermarks of the project.
DELETE FROM {schema}.etl_state s
WHERE starts_with(s.pipeline_name, %(prefix)s)
  AND position('.' IN substr(s.pipeline_name, length(%(prefix)s) + 1)) = 0
  AND NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.resource = s.table_name
                  AND f.control_id IS DISTINCT FROM %(control_id)s::uuid)

-- name: delete_own_fences
-- Forget the fences of tables that nobody else loads; this comes last.
DELETE FROM {schema}.fences f
WHERE f.control_id = %(control_id)s::uuid
  AND NOT EXISTS (SELECT FROM {schema}.etl_state s WHERE s.table_name = f.resource)
