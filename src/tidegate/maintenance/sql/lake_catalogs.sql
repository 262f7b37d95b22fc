-- lake_catalogs(project, catalog, refreshed_at, tried_at, error): when the tables of a lake were
-- last looked at.

-- name: list_catalogs
-- How it stands with each catalog.
SELECT catalog, refreshed_at, tried_at, error, now() FROM {schema}.lake_catalogs
WHERE project = %(project)s AND catalog = ANY(%(catalogs)s)
ORDER BY catalog

-- name: note_refreshed
-- All tables of a catalog were looked at.
INSERT INTO {schema}.lake_catalogs AS c (project, catalog, refreshed_at)
VALUES (%(project)s, %(catalog)s, %(listed_at)s)
ON CONFLICT (project, catalog) DO UPDATE
SET refreshed_at = greatest(c.refreshed_at, excluded.refreshed_at), tried_at = clock_timestamp(),
    error = NULL

-- name: note_failed
-- A catalog could not be listed; what is known of its tables stays.
INSERT INTO {schema}.lake_catalogs (project, catalog, error)
VALUES (%(project)s, %(catalog)s, %(error)s)
ON CONFLICT (project, catalog) DO UPDATE
SET tried_at = clock_timestamp(), error = excluded.error

-- name: try_lock
-- One refresh at a time; it ends with the session.
SELECT pg_try_advisory_lock(hashtextextended(%(key)s, 0::bigint))

-- name: unlock
-- Let others refresh.
SELECT pg_advisory_unlock(hashtextextended(%(key)s, 0::bigint))
