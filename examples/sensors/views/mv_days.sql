-- What each sensor measured on a day (UTC).
SELECT
    (measured_at AT TIME ZONE 'UTC')::date AS day,
    serial,
    metric,
    count(*) AS readings,
    min(value) AS lowest,
    max(value) AS highest,
    round(avg(value), 3) AS average
FROM plant.readings
WHERE NOT is_test
GROUP BY 1, 2, 3
