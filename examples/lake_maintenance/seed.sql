CREATE TABLE orders (
    id         bigint         PRIMARY KEY,
    customer   text           NOT NULL,
    total      numeric(12, 2) NOT NULL,
    updated_at timestamptz    NOT NULL
);
INSERT INTO orders
SELECT n, 'customer ' || n % 97, n * 1.25, timestamptz '2026-11-01' + n * interval '1 minute'
FROM generate_series(1, 6000) n;
CREATE INDEX ON orders (updated_at);
