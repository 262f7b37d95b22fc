-- catalog_moves(attempt_id, session, backend_pid, backend_start): which sessions of maintenance have
-- committed, written by the catalog's own trigger.

-- name: forget_replaced
-- An attempt that holds no table any more loses every race. That of one that has ended may still be
-- needed: Spark can go on after its client has left.
DELETE FROM {schema}.catalog_moves WHERE ctid = ANY(ARRAY(
    SELECT m.ctid FROM {schema}.catalog_moves m
    WHERE NOT EXISTS (SELECT FROM {schema}.fences f WHERE f.attempt_id = m.attempt_id)
    FOR UPDATE SKIP LOCKED))
