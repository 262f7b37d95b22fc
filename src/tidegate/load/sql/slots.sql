-- slots(slot, project, connection, system, database, made_at): the slots of this project.
-- slot_readers(slot, pipeline, publication, lsn, read_at, updated_at): who reads them, how far.

-- name: register_slot
-- Know a slot before it is made, so that one that was made is always known.
INSERT INTO {schema}.slots (slot, project, connection, system, database)
VALUES (%(slot)s, %(project)s, %(connection)s, %(system)s, %(database)s)
ON CONFLICT (slot) DO UPDATE SET system = excluded.system, connection = excluded.connection

-- name: register_reader
-- Hold a slot where it is until this reader has got further; one that is known stays as it is.
INSERT INTO {schema}.slot_readers (slot, pipeline, publication, lsn)
VALUES (%(slot)s, %(pipeline)s, %(publication)s, %(lsn)s)
ON CONFLICT (slot, pipeline) DO NOTHING

-- name: move_reader
-- A reader has published up to here; never back, since the slot cannot go back either.
INSERT INTO {schema}.slot_readers AS r (slot, pipeline, publication, lsn, read_at)
VALUES (%(slot)s, %(pipeline)s, %(publication)s, %(lsn)s, %(read_at)s)
ON CONFLICT (slot, pipeline) DO UPDATE
SET lsn = greatest(r.lsn, excluded.lsn), read_at = coalesce(excluded.read_at, r.read_at),
    updated_at = now()

-- name: reset_readers
-- The slot was made anew: what was said of the old one holds no longer.
UPDATE {schema}.slot_readers SET lsn = %(lsn)s, updated_at = now() WHERE slot = %(slot)s

-- name: least_lsn
-- How far a slot may be advanced.
SELECT min(lsn)::text FROM {schema}.slot_readers WHERE slot = %(slot)s

-- name: list_slots
-- The slots of a project.
SELECT slot, connection, system, database, made_at
FROM {schema}.slots WHERE project = %(project)s ORDER BY slot

-- name: list_readers
-- Who reads the slots of a project, the last one first.
SELECT r.slot, r.pipeline, r.publication, r.lsn::text, r.read_at
FROM {schema}.slot_readers r JOIN {schema}.slots s USING (slot)
WHERE s.project = %(project)s ORDER BY r.slot, r.lsn, r.pipeline

-- name: readers_of
-- The slots that a pipeline reads.
SELECT r.slot, r.pipeline, r.publication, r.lsn::text, r.read_at
FROM {schema}.slot_readers r WHERE r.pipeline = %(pipeline)s ORDER BY r.slot

-- name: forget_reader
-- A reader is gone.
DELETE FROM {schema}.slot_readers WHERE slot = %(slot)s AND pipeline = %(pipeline)s

-- name: forget_slot
-- A slot is gone, unless somebody reads it again.
DELETE FROM {schema}.slots s WHERE slot = %(slot)s
AND NOT EXISTS (SELECT FROM {schema}.slot_readers r WHERE r.slot = s.slot)
