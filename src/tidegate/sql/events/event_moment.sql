-- The moment that an event names at a path; NULL for whatever is no event or no moment.
CREATE OR REPLACE FUNCTION {schema}.event_moment(body text, path text[]) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS
$body$
DECLARE
    found text;
BEGIN
    -- As json, which takes a NUL in what is not looked at.
    found := body::json #>> path;
    -- Other words for a moment depend on when they are read: now, today, infinity.
    IF found ~ '^\d{{4}}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)? ?(Z|z|[+-]\d\d(:?\d\d)?)?$' THEN
        RETURN found::timestamptz;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$body$
