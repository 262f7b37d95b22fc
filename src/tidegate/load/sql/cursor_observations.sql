-- cursor_observations(pipeline, observed_at, value): highest integer cursors seen, and when.

-- name: record_observation
-- Remember the highest value seen at a moment of the source's clock.
INSERT INTO {schema}.cursor_observations (pipeline, observed_at, value)
VALUES (%(pipeline)s, %(observed_at)s, %(value)s)
ON CONFLICT (pipeline, observed_at) DO NOTHING

-- name: latest_before
-- The newest observation made before a moment.
SELECT value FROM {schema}.cursor_observations
WHERE pipeline = %(pipeline)s AND observed_at <= %(moment)s
ORDER BY observed_at DESC
LIMIT 1

-- name: prune_observations
-- Keep the hundred newest.
DELETE FROM {schema}.cursor_observations
WHERE pipeline = %(pipeline)s AND observed_at < (
    SELECT min(observed_at) FROM (
        SELECT observed_at FROM {schema}.cursor_observations
        WHERE pipeline = %(pipeline)s ORDER BY observed_at DESC LIMIT 100
    ) newest)

-- name: forget_observations
-- A pipeline starts anew.
DELETE FROM {schema}.cursor_observations WHERE pipeline = %(pipeline)s
