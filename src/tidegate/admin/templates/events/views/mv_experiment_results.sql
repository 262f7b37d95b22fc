-- Users belong to the variant that they saw first, and have converted when they bought something
-- after that. `lift` and `z` (two proportions, pooled) compare with the variant named control;
-- beyond 1.96 or below -1.96 a difference is hardly chance (95 %).
WITH exposures AS (
    SELECT DISTINCT ON (shown.experiment, facts.user_id)
        shown.experiment,
        shown.variant,
        facts.user_id,
        facts.occurred_at
    FROM warehouse.fact_events AS facts
    JOIN warehouse.dim_experiments AS shown ON shown.experiment_id = facts.experiment_id
    WHERE facts.event_type = 'experiment_viewed'
        AND facts.user_id IS NOT NULL
        AND shown.experiment IS NOT NULL
        AND shown.variant IS NOT NULL
    ORDER BY shown.experiment, facts.user_id, facts.occurred_at, shown.variant COLLATE "C"
),
purchases AS (
    SELECT user_id, max(occurred_at) AS last_at
    FROM warehouse.fact_events
    WHERE event_type = 'purchase' AND user_id IS NOT NULL
    GROUP BY user_id
),
variants AS (
    SELECT
        exposures.experiment,
        exposures.variant,
        count(*)::numeric AS users,
        count(*) FILTER (WHERE purchases.last_at > exposures.occurred_at)::numeric AS converted
    FROM exposures
    LEFT JOIN purchases ON purchases.user_id = exposures.user_id
    GROUP BY exposures.experiment, exposures.variant
),
compared AS (
    SELECT
        tried.experiment,
        tried.variant,
        tried.users,
        tried.converted,
        tried.converted / tried.users AS rate,
        control.converted / control.users AS control_rate,
        (tried.converted + control.converted) / (tried.users + control.users) AS pooled,
        1 / tried.users + 1 / control.users AS spread
    FROM variants AS tried
    LEFT JOIN variants AS control
        ON control.experiment = tried.experiment
        AND control.variant = 'control'
        AND tried.variant <> 'control'
)
SELECT
    experiment,
    variant,
    users::bigint AS users,
    converted::bigint AS converted,
    round(rate, 6) AS conversion,
    round(rate / nullif(control_rate, 0) - 1, 6) AS lift,
    round((rate - control_rate) / nullif(sqrt(pooled * (1 - pooled) * spread), 0), 4) AS z
FROM compared
