-- api_tokens(token_id, project, name, hash, scope, created_at, created_by, expires_at, revoked_at,
--            revoked_by, used_at)

-- name: create_token
-- A new token; its name must be free among those that are not revoked.
INSERT INTO {schema}.api_tokens (token_id, project, name, hash, scope, created_by, expires_at)
VALUES (%(token_id)s, %(project)s, %(name)s, %(hash)s, %(scope)s, %(actor)s,
        now() + %(expires)s::float8 * interval '1 second')
RETURNING token_id, name, scope, created_at, created_by, expires_at, revoked_at, revoked_by,
          used_at, false

-- name: list_tokens
-- The tokens of a project by name, those that were revoked last.
SELECT token_id, name, scope, created_at, created_by, expires_at, revoked_at, revoked_by, used_at,
       coalesce(expires_at <= now(), false)
FROM {schema}.api_tokens
WHERE project = %(project)s
ORDER BY revoked_at IS NOT NULL, name, created_at DESC

-- name: find_token
-- Whether a project ever had a token, and the one with this hash; the time of its use is noted once
-- a minute.
WITH found AS (
    SELECT token_id, name, scope, created_at, created_by, expires_at, revoked_at, revoked_by,
           used_at, coalesce(expires_at <= now(), false) AS is_expired, hash
    FROM {schema}.api_tokens
    WHERE project = %(project)s AND hash = %(hash)s AND revoked_at IS NULL
), touched AS (
    UPDATE {schema}.api_tokens t SET used_at = now()
    FROM found f
    WHERE t.token_id = f.token_id AND NOT f.is_expired
      AND (t.used_at IS NULL OR t.used_at < now() - interval '1 minute')
)
SELECT EXISTS (SELECT FROM {schema}.api_tokens WHERE project = %(project)s),
       f.token_id, f.name, f.scope, f.created_at, f.created_by, f.expires_at, f.revoked_at,
       f.revoked_by, f.used_at, f.is_expired, f.hash
FROM (SELECT) AS always
LEFT JOIN found f ON true

-- name: has_tokens
-- Whether a project ever had a token, and whether one of them is good still.
SELECT count(*) > 0,
       coalesce(bool_or(revoked_at IS NULL AND coalesce(expires_at > now(), true)), false)
FROM {schema}.api_tokens WHERE project = %(project)s

-- name: forget_tokens
-- Forget every token of a project: it is as if there never was one.
DELETE FROM {schema}.api_tokens WHERE project = %(project)s

-- name: revoke_token
-- From now on this token opens nothing.
UPDATE {schema}.api_tokens SET revoked_at = now(), revoked_by = %(actor)s
WHERE project = %(project)s AND name = %(name)s AND revoked_at IS NULL
RETURNING token_id, name, scope, created_at, created_by, expires_at, revoked_at, revoked_by,
          used_at, coalesce(expires_at <= now(), false)
