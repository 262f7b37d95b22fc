-- raw_events(id, body, payload, received_at, status, processed_at, error, sender)

-- name: take_in
-- Add what is new, in the order of the ids: requests with the same events never deadlock.
INSERT INTO {raw} (id, body, sender)
SELECT id, body, %(sender)s
  FROM unnest(%(ids)s::uuid[], %(bodies)s::text[]) AS given (id, body)
 ORDER BY id
    ON CONFLICT (id) DO NOTHING;

-- name: list_differing
-- Of these events, those that are held under their ids with other bodies.
SELECT id
  FROM unnest(%(ids)s::uuid[], %(bodies)s::text[]) AS given (id, body)
  JOIN {raw} AS held USING (id)
 WHERE held.body <> given.body;

-- name: make_copied
-- Where copied events lie until those that are new are known.
CREATE TEMP TABLE {copied} (id uuid, body text, received_at timestamptz);

-- name: copy
-- Events as they come.
COPY {copied} (id, body, received_at) FROM STDIN (FORMAT BINARY);

-- name: take_in_copied
-- Add what is new; an id that comes twice is the event that was received first.
INSERT INTO {raw} (id, body, received_at)
SELECT DISTINCT ON (id) id, body, coalesce(received_at, clock_timestamp())
  FROM {copied}
 ORDER BY id, received_at
    ON CONFLICT (id) DO NOTHING;

-- name: drop_copied
-- All that was copied has been looked at.
DROP TABLE {copied};
