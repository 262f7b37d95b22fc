CREATE TABLE orders (
    id         integer PRIMARY KEY,
    status     text NOT NULL,
    email      text NOT NULL,
    quantity   integer NOT NULL,
    price      numeric(10, 2) NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON orders (updated_at);

INSERT INTO orders
SELECT n, CASE WHEN n % 20 = 0 THEN 'test' ELSE 'placed' END, 'c' || n % 30 || '@example.com',
       1 + n % 4, 0.99 + n % 70, now() - (300 - n) * interval '1 hour'
FROM generate_series(1, 200) AS n;
