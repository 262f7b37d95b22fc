-- lake_tables(project, catalog, namespace, name, metadata_location, facts, read_at, seen_at, error,
--             orphans): the table cache.

-- name: clock
-- The database's clock, by which all that is cached is dated.
SELECT clock_timestamp()

-- name: find_tables
-- The tables of this name, whichever catalog has them, and how it stands with each catalog.
SELECT t.catalog, t.namespace, t.name, t.metadata_location, t.facts, t.read_at, t.seen_at, t.error,
       t.orphans, c.refreshed_at, c.tried_at, c.error, now()
FROM {schema}.lake_tables t
LEFT JOIN {schema}.lake_catalogs c USING (project, catalog)
WHERE t.project = %(project)s AND t.catalog = ANY(%(catalogs)s)
  AND t.namespace = %(namespace)s AND t.name = %(name)s
ORDER BY t.catalog

-- name: list_tables
-- The tables of some catalogs, in order, beyond one of them.
SELECT t.catalog, t.namespace, t.name, t.metadata_location, t.facts, t.read_at, t.seen_at, t.error,
       t.orphans, c.refreshed_at, c.tried_at, c.error, now()
FROM {schema}.lake_tables t
LEFT JOIN {schema}.lake_catalogs c USING (project, catalog)
WHERE t.project = %(project)s AND t.catalog = ANY(%(catalogs)s)
  AND (%(after_catalog)s::text IS NULL OR (t.catalog, t.namespace, t.name)
       > (%(after_catalog)s::text, %(after_namespace)s::text, %(after_name)s::text))
ORDER BY t.catalog, t.namespace, t.name
LIMIT %(limit)s

-- name: list_names
-- What the tables of some catalogs are called.
SELECT catalog, namespace, name FROM {schema}.lake_tables
WHERE project = %(project)s AND catalog = ANY(%(catalogs)s)
ORDER BY catalog, namespace, name

-- name: see_tables
-- Note that these tables are there, and say for each whether it must be read: because it was never,
-- because it could not be, or because its metadata is another by now or cannot be told.
INSERT INTO {schema}.lake_tables AS t (project, catalog, namespace, name)
SELECT %(project)s, %(catalog)s, l.namespace, l.name
FROM unnest(%(namespaces)s::text[], %(names)s::text[]) AS l(namespace, name)
ORDER BY l.namespace, l.name
ON CONFLICT (project, catalog, namespace, name) DO UPDATE SET seen_at = clock_timestamp()
RETURNING t.namespace, t.name,
          CASE WHEN t.error IS NULL AND t.facts IS NOT NULL THEN t.metadata_location END

-- name: remove_unseen
-- Forget the tables of a catalog that were not there when it was listed.
DELETE FROM {schema}.lake_tables
WHERE project = %(project)s AND catalog = %(catalog)s AND seen_at < %(listed_at)s

-- name: put_table
-- What a table is made of; what was read earlier never takes the place of what was read later.
INSERT INTO {schema}.lake_tables AS t
    (project, catalog, namespace, name, metadata_location, facts, read_at)
VALUES (%(project)s, %(catalog)s, %(namespace)s, %(name)s, %(metadata_location)s, %(facts)s,
        %(read_at)s)
ON CONFLICT (project, catalog, namespace, name) DO UPDATE
SET metadata_location = excluded.metadata_location, facts = excluded.facts,
    read_at = excluded.read_at, seen_at = clock_timestamp(), error = NULL
WHERE t.read_at IS NULL OR t.read_at <= excluded.read_at

-- name: put_orphans
-- How many files dead attempts have probably left in each table.
UPDATE {schema}.lake_tables t SET orphans = e.orphans
FROM unnest(%(namespaces)s::text[], %(names)s::text[], %(orphans)s::jsonb[])
    AS e(namespace, name, orphans)
WHERE t.project = %(project)s AND t.catalog = %(catalog)s AND t.namespace = e.namespace
  AND t.name = e.name AND t.orphans IS DISTINCT FROM e.orphans

-- name: mark_table
-- Why a table could not be read; what was read before stays.
INSERT INTO {schema}.lake_tables (project, catalog, namespace, name, error)
VALUES (%(project)s, %(catalog)s, %(namespace)s, %(name)s, %(error)s)
ON CONFLICT (project, catalog, namespace, name) DO UPDATE
SET error = excluded.error, seen_at = clock_timestamp()

-- name: remove_table
-- Forget one table.
DELETE FROM {schema}.lake_tables
WHERE project = %(project)s AND catalog = %(catalog)s AND namespace = %(namespace)s
  AND name = %(name)s
