-- catalog_moves(attempt_id, session, backend_pid, backend_start): which sessions of maintenance have
-- committed, written by the catalog's own trigger.

-- name: forget_ended
-- Attempts that hold no table any more commit nothing, so nothing of theirs can be sent again.
DELETE FROM {schema}.catalog_moves WHERE ctid = ANY(ARRAY(
    SELECT m.ctid FROM {schema}.catalog_moves m
    WHERE m.attempt_id = %(attempt_id)s
       OR NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.attempt_id = m.attempt_id)
    FOR UPDATE SKIP LOCKED))
