-- Partitions of the facts: which months are needed, and which are kept no more.

-- name: read_months
-- Months to be made, and partitions to be detached that no waiting event needs.
WITH clock AS (
    SELECT date_trunc('month', statement_timestamp() AT TIME ZONE 'UTC') AS month
), moments AS MATERIALIZED (
    -- Whichever they are: of a larger backlog the second phase finds the months that are missing.
    SELECT {schema}.event_moment(body, %(path)s) AS moment, received_at FROM {raw}
    WHERE status = 'pending' AND octet_length(body) <= %(max_bytes)s
    LIMIT %(most)s
), waiting AS (
    SELECT DISTINCT date_trunc('month', moments.moment AT TIME ZONE 'UTC') AS month
    FROM moments, clock
    WHERE received_at - moment <= %(max_age)s AND moment - received_at <= %(max_ahead)s
      AND (%(keep)s = 0 OR date_trunc('month', moment AT TIME ZONE 'UTC')
           > clock.month - make_interval(months => %(keep)s))
), wanted AS (
    SELECT month FROM waiting
    UNION SELECT unnest(%(months)s::date[])::timestamp
    UNION SELECT generate_series(month, month + make_interval(months => %(ahead)s), '1 month')
    FROM clock
), parts AS (
    SELECT c.relname::text AS part, i.inhdetachpending AS leaving,
           to_date(substring(c.relname FROM '_([0-9][0-9][0-9][0-9]_[0-9][0-9])$'), 'YYYY_MM') AS month
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = %(facts)s::regclass
)
SELECT w.month::date, NULL::text, false
FROM wanted w
WHERE NOT EXISTS (SELECT FROM parts p WHERE p.month = w.month::date AND NOT p.leaving)
UNION ALL
SELECT p.month, p.part, p.leaving
FROM parts p CROSS JOIN clock c
WHERE p.leaving OR (%(keep)s > 0 AND p.month <= c.month - make_interval(months => %(keep)s)
                    AND NOT EXISTS (SELECT FROM wanted w WHERE w.month::date = p.month))
ORDER BY 3 DESC, 2 NULLS FIRST, 1

-- name: create_month
-- Make one month; who waits for it holds up nobody.
SELECT set_config('lock_timeout', '30s', true), {schema}.create_monthly_partition(%(month)s, %(facts)s)
