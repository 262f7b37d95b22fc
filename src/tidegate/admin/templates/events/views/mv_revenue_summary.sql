-- What each account paid on a day (UTC) in a currency, and what it got back.
SELECT
    account_id,
    (occurred_at AT TIME ZONE 'UTC')::date AS day,
    currency,
    count(*) FILTER (WHERE event_type = 'purchase') AS purchases,
    count(*) FILTER (WHERE event_type = 'refund') AS refunds,
    coalesce(sum(amount) FILTER (WHERE event_type = 'purchase'), 0) AS revenue,
    coalesce(sum(amount) FILTER (WHERE event_type = 'refund'), 0) AS refunded,
    sum(CASE event_type WHEN 'purchase' THEN amount ELSE -amount END) AS net
FROM warehouse.fact_events
WHERE event_type IN ('purchase', 'refund')
    AND amount IS NOT NULL
    AND currency IS NOT NULL
GROUP BY account_id, (occurred_at AT TIME ZONE 'UTC')::date, currency
