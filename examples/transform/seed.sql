CREATE TYPE mood AS ENUM ('fine', 'angry');

CREATE TABLE orders (
    id         integer PRIMARY KEY,
    status     text NOT NULL,
    email      text NOT NULL,
    address    jsonb NOT NULL,
    quantity   integer NOT NULL,
    price      numeric(10, 2) NOT NULL,
    mood       mood,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON orders (updated_at);

INSERT INTO orders
SELECT n, CASE WHEN n % 20 = 0 THEN 'test' ELSE 'placed' END, 'c' || n % 300 || '@example.com',
       jsonb_build_object('country', (ARRAY['DE', 'FR', 'PL'])[1 + n % 3]), 1 + n % 4,
       0.99 + n % 70, CASE WHEN n % 7 = 0 THEN 'angry'::mood END
FROM generate_series(1, 2000) AS n;
