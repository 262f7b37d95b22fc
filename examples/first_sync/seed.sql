CREATE TABLE products (
    id         integer PRIMARY KEY,
    name       text NOT NULL,
    price      numeric(10, 2) NOT NULL,
    tags       text[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON products (updated_at);

CREATE TABLE stock (
    depot      text NOT NULL,
    product_id integer NOT NULL REFERENCES products,
    quantity   integer NOT NULL,
    counted_at timestamptz NOT NULL,
    PRIMARY KEY (depot, product_id)
);
CREATE INDEX ON stock (counted_at);

CREATE TABLE page_views (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    product_id integer NOT NULL,
    visitor    uuid NOT NULL,
    details    jsonb
);

-- updated_at must move with every change, whoever makes it.
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN NEW.updated_at := now(); RETURN NEW; END';
CREATE TRIGGER stamp BEFORE UPDATE ON products FOR EACH ROW EXECUTE FUNCTION stamp();

INSERT INTO products (id, name, price, tags)
SELECT n, 'product ' || n, 0.99 + n % 90, ARRAY['a' || n % 3, 'b' || n % 5]
FROM generate_series(1, 1000) AS n;

INSERT INTO stock
SELECT depot, n, n * 7 % 40, timestamptz '2026-01-01 06:00+00' + n * interval '1 minute'
FROM generate_series(1, 1000) AS n, unnest(ARRAY['north', 'south']) AS depot;

INSERT INTO page_views (product_id, visitor, details)
SELECT 1 + n % 1000, md5(n::text)::uuid, jsonb_build_object('seconds', n % 60)
FROM generate_series(1, 5000) AS n;
