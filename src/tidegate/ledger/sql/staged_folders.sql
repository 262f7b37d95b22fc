-- staged_folders(folder, attempt_id, target_table, …): files in a lake that an attempt has staged.

-- name: note_folder
-- Before the first file is written.
INSERT INTO {schema}.staged_folders (folder, attempt_id, target_table, location)
VALUES (%(folder)s, %(attempt_id)s, %(table)s, %(location)s)
ON CONFLICT (folder) DO NOTHING

-- name: adopt_folder
-- From here on its files may be the table's own: nobody removes them for being left over.
UPDATE {schema}.staged_folders SET adopted = true WHERE folder = ANY(%(folders)s)

-- name: list_folders
-- What an attempt has left behind.
SELECT folder, attempt_id, location, adopted FROM {schema}.staged_folders
WHERE attempt_id = %(attempt_id)s ORDER BY noted_at

-- name: list_attempts
-- Every attempt that may have left something behind for a table.
SELECT DISTINCT attempt_id FROM {schema}.staged_folders WHERE target_table = %(table)s

-- name: delete_folders
-- Nothing of this attempt is left, or what is left is the table's own. Spark's workers outlive a
-- driver that was killed, and a job that failed, and may still write: the folders are looked at
-- again for an hour.
DELETE FROM {schema}.staged_folders WHERE attempt_id = %(attempt_id)s
AND (%(ended)s OR noted_at < now() - interval '1 hour')

-- name: folders_of_table
-- What all attempts have left behind for a table, or for any.
SELECT folder, attempt_id, location, adopted FROM {schema}.staged_folders
WHERE %(table)s::text IS NULL OR target_table = %(table)s ORDER BY noted_at

-- name: unadopted_folders
-- Folders of all tables whose files no table has taken for its own.
SELECT target_table, attempt_id FROM {schema}.staged_folders WHERE NOT adopted
