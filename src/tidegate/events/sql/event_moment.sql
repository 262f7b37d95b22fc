-- The moment that an event names at a path; NULL for whatever is no event or no moment.
CREATE OR REPLACE FUNCTION {schema}.event_moment(body text, path text[]) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS
$body$
DECLARE
    found text;
    part text[];
BEGIN
    IF strpos(body, '\u') > 0 THEN
        -- Postgres refuses a NUL and half a character even in what is not looked at.
        body := regexp_replace(body, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{{2}})', '\\ufffd', 'g');
    END IF;
    found := body::json #>> path;
    -- What nearly all of them look like; without parts to be found it is much faster.
    IF found ~ ('^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[Tt ]'
                '([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{{1,6}})?)?'
                '([Zz]|[-+](0[0-9]|1[0-4])(:?[0-5][0-9])?)$') THEN
        RETURN found::timestamptz;
    END IF;
    part := regexp_match(
        found,
        '^([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[Tt ]'
        '((?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{1,9}})?)?)'
        ' ?(?:[Zz]|([-+])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?)$'
    );
    IF part IS NULL THEN
        RETURN NULL;
    END IF;
    -- Cut to microseconds: Postgres would round, perhaps into the next month.
    RETURN (part[1] || ' ' || regexp_replace(part[2], '(\.[0-9]{{6}})[0-9]+', '\1'))::timestamp
           AT TIME ZONE 'UTC'
           - make_interval(hours => coalesce((part[3] || part[4])::int, 0),
                           mins => coalesce((part[3] || part[5])::int, 0));
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$body$
