-- fence_tokens: the sequence that orders attempts.

-- name: reissue_fence
-- A higher token for the same attempt, after the destination turned out to be ahead of us.
UPDATE {schema}.job_queue q
SET fence = nextval(%(sequence)s::regclass)
WHERE q.job_id = %(job_id)s AND q.attempt_id = %(attempt_id)s
RETURNING fence

-- name: reseed_tokens
-- Lift the sequence above a token seen in a destination; never lowers it.
SELECT setval(%(sequence)s::regclass, greatest(%(token)s, nextval(%(sequence)s::regclass)))

-- name: next_token
-- A token without a claim, for whoever raises a fence against a dead attempt.
SELECT nextval(%(sequence)s::regclass)

-- name: last_token
-- The newest token of all that were issued.
SELECT pg_sequence_last_value(%(sequence)s::regclass)
