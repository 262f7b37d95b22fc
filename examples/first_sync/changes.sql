UPDATE products SET price = price * 1.1 WHERE id % 10 = 0;
INSERT INTO products (id, name, price, tags) VALUES (1001, 'a new product', 12.50, '{new}');
INSERT INTO stock VALUES ('north', 1001, 100, now());

-- A scanner that was offline: counted before the rows that are already loaded. Lookback finds it.
UPDATE stock
SET quantity = 0, counted_at = timestamptz '2026-01-01 22:35+00'
WHERE depot = 'south' AND product_id = 1;

INSERT INTO page_views (product_id, visitor)
SELECT 1001, md5(n::text)::uuid FROM generate_series(1, 250) AS n;
