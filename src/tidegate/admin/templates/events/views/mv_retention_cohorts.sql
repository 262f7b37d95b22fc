-- Of the users first seen in a week (Monday to Sunday, UTC), how many came back one, two and four
-- weeks later. A share is NULL as long as no event of that week, or of a later one, has arrived.
WITH active AS (
    SELECT DISTINCT user_id, date_trunc('week', occurred_at AT TIME ZONE 'UTC')::date AS week
    FROM warehouse.fact_events
    WHERE user_id IS NOT NULL
),
span AS (
    SELECT min(week) AS first_week, max(week) AS last_week FROM active
),
cohorts AS (
    -- Users remember when they were first seen, also where the facts of that time were detached.
    SELECT user_id, date_trunc('week', first_seen_at AT TIME ZONE 'UTC')::date AS cohort_week
    FROM warehouse.dim_users
),
counted AS (
    SELECT
        cohorts.cohort_week,
        count(DISTINCT cohorts.user_id) AS users,
        count(*) FILTER (WHERE active.week = cohorts.cohort_week + 7) AS w1_users,
        count(*) FILTER (WHERE active.week = cohorts.cohort_week + 14) AS w2_users,
        count(*) FILTER (WHERE active.week = cohorts.cohort_week + 28) AS w4_users
    FROM cohorts
    LEFT JOIN active ON active.user_id = cohorts.user_id
    GROUP BY cohorts.cohort_week
)
SELECT
    cohort_week,
    users,
    w1_users,
    w2_users,
    w4_users,
    CASE WHEN cohort_week + 7 <= last_week THEN round(w1_users::numeric / users, 6) END AS w1,
    CASE WHEN cohort_week + 14 <= last_week THEN round(w2_users::numeric / users, 6) END AS w2,
    CASE WHEN cohort_week + 28 <= last_week THEN round(w4_users::numeric / users, 6) END AS w4
FROM counted
CROSS JOIN span
WHERE cohort_week >= first_week
