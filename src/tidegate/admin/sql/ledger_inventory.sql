-- What a ledger holds of one project, for taking it out. Which pairs of pipeline and table are the
-- project's is found out first (model/ownership.py) and given as two lists.

-- name: list_objects
-- Everything that lies in a schema by itself; what belongs to a table is not listed beside it. A
-- partitioned table belongs to itself, by its key.
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
                    AND o.refclassid = 'pg_class'::regclass AND o.refobjid <> d.objid)
ORDER BY 3

-- name: may_drop_schema
-- Whether a schema is there and this role owns it.
SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = %(name)s

-- name: list_pipelines
-- Pipelines and their tables, and whether another control plane has the fence of the table.
SELECT p.pipeline_name, p.table_name, EXISTS (
    SELECT FROM {schema}.fences f
    WHERE f.resource = p.table_name AND f.control_id IS DISTINCT FROM %(control_id)s::uuid)
FROM (SELECT pipeline_name, table_name FROM {schema}.etl_state
      UNION SELECT pipeline_name, table_name FROM {schema}.watermark_log) p
ORDER BY 1, 2

-- name: list_planes
-- Control planes that hold a fence here.
SELECT DISTINCT control_id FROM {schema}.fences

-- name: count_rows
-- Watermarks, moves and fences of the project.
WITH own AS (
    SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]) o(pipeline_name, table_name)
)
SELECT (SELECT count(*) FROM {schema}.etl_state JOIN own USING (pipeline_name, table_name)),
       (SELECT count(*) FROM {schema}.watermark_log JOIN own USING (pipeline_name, table_name)),
       (SELECT count(*) FROM {schema}.fences f
        WHERE f.control_id = %(control_id)s::uuid AND NOT EXISTS (
            SELECT FROM {schema}.etl_state s WHERE s.table_name = f.resource
              AND (s.pipeline_name, s.table_name) NOT IN (SELECT * FROM own)))

-- name: count_own_markers
-- Markers of the project's loads, or of all that the log names.
SELECT count(*) FROM {markers} m
WHERE EXISTS (
    SELECT FROM {schema}.watermark_log l
    WHERE l.update_id = m.update_id AND l.table_name = m.target_table
      AND (%(everybody)s OR (l.pipeline_name, l.table_name) IN (
          SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]))))

-- name: delete_own_markers
-- Forget those loads; this comes first, while the log still names them.
DELETE FROM {markers} m
WHERE EXISTS (
    SELECT FROM {schema}.watermark_log l
    WHERE l.update_id = m.update_id AND l.table_name = m.target_table
      AND (%(everybody)s OR (l.pipeline_name, l.table_name) IN (
          SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]))))

-- name: delete_own_moves
-- Forget the log of the project.
DELETE FROM {schema}.watermark_log
WHERE (pipeline_name, table_name) IN (
    SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]))

-- name: delete_own_states
-- Forget the watermarks of the project.
DELETE FROM {schema}.etl_state
WHERE (pipeline_name, table_name) IN (
    SELECT * FROM unnest(%(pipelines)s::text[], %(tables)s::text[]))

-- name: delete_own_fences
-- Forget the fences of tables that nobody else loads; this comes last.
DELETE FROM {schema}.fences f
WHERE f.control_id = %(control_id)s::uuid
  AND NOT EXISTS (SELECT FROM {schema}.etl_state s WHERE s.table_name = f.resource)
