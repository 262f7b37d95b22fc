-- How many users got how far. A step counts only after the step before it, and only within the
-- funnel's window from the first step; a user may begin any number of times, and the best counts.
WITH steps (funnel, step, event_type, window_length) AS (
    VALUES
        ('purchase', 1, 'product_viewed', interval '168 hours'),
        ('purchase', 2, 'cart_filled', interval '168 hours'),
        ('purchase', 3, 'checkout_started', interval '168 hours'),
        ('purchase', 4, 'purchase', interval '168 hours'),
        ('activation', 1, 'signup', interval '336 hours'),
        ('activation', 2, 'feature_used', interval '336 hours'),
        ('activation', 3, 'invite_sent', interval '336 hours')
),
taken AS (
    SELECT steps.funnel, steps.step, steps.window_length, facts.user_id, facts.occurred_at
    FROM warehouse.fact_events AS facts
    JOIN steps ON steps.event_type = facts.event_type
    WHERE facts.user_id IS NOT NULL
),
-- Each step carries along the latest beginning that leads to it: no other is inside of the window
-- when that one is not. The frame ends before the same moment, so that "after" means later.
reached_1 AS (
    SELECT funnel, step, window_length, user_id, occurred_at, occurred_at AS began_at
    FROM taken
    WHERE step = 1
),
reached_2 AS (
    SELECT funnel, step, window_length, user_id, occurred_at, began_at
    FROM (
        SELECT funnel, step, window_length, user_id, occurred_at, max(began_at) OVER (
            PARTITION BY funnel, user_id ORDER BY occurred_at
            RANGE BETWEEN UNBOUNDED PRECEDING AND interval '1 microsecond' PRECEDING
        ) AS began_at
        FROM (
            SELECT * FROM reached_1
            UNION ALL
            SELECT *, NULL FROM taken WHERE step = 2
        ) AS joined
    ) AS carried
    WHERE step = 2 AND occurred_at <= began_at + window_length
),
reached_3 AS (
    SELECT funnel, step, window_length, user_id, occurred_at, began_at
    FROM (
        SELECT funnel, step, window_length, user_id, occurred_at, max(began_at) OVER (
            PARTITION BY funnel, user_id ORDER BY occurred_at
            RANGE BETWEEN UNBOUNDED PRECEDING AND interval '1 microsecond' PRECEDING
        ) AS began_at
        FROM (
            SELECT * FROM reached_2
            UNION ALL
            SELECT *, NULL FROM taken WHERE step = 3
        ) AS joined
    ) AS carried
    WHERE step = 3 AND occurred_at <= began_at + window_length
),
reached_4 AS (
    SELECT funnel, step, window_length, user_id, occurred_at, began_at
    FROM (
        SELECT funnel, step, window_length, user_id, occurred_at, max(began_at) OVER (
            PARTITION BY funnel, user_id ORDER BY occurred_at
            RANGE BETWEEN UNBOUNDED PRECEDING AND interval '1 microsecond' PRECEDING
        ) AS began_at
        FROM (
            SELECT * FROM reached_3
            UNION ALL
            SELECT *, NULL FROM taken WHERE step = 4
        ) AS joined
    ) AS carried
    WHERE step = 4 AND occurred_at <= began_at + window_length
),
counted AS (
    SELECT funnel, step, count(DISTINCT user_id) AS users
    FROM (
        SELECT funnel, step, user_id FROM reached_1
        UNION ALL
        SELECT funnel, step, user_id FROM reached_2
        UNION ALL
        SELECT funnel, step, user_id FROM reached_3
        UNION ALL
        SELECT funnel, step, user_id FROM reached_4
    ) AS reached
    GROUP BY funnel, step
)
SELECT
    steps.funnel,
    steps.step,
    steps.event_type,
    coalesce(counted.users, 0) AS users,
    round(
        coalesce(counted.users, 0)::numeric
        / nullif(lag(coalesce(counted.users, 0)) OVER funnel_steps, 0), 6
    ) AS of_previous,
    round(
        coalesce(counted.users, 0)::numeric
        / nullif(first_value(coalesce(counted.users, 0)) OVER funnel_steps, 0), 6
    ) AS of_first
FROM steps
LEFT JOIN counted ON counted.funnel = steps.funnel AND counted.step = steps.step
WINDOW funnel_steps AS (PARTITION BY steps.funnel ORDER BY steps.step)
