-- Fifty tables of every kind that a shop collects over the years. All are small.

-- Twenty with a column that rises with every change.
DO $$
BEGIN
    FOR n IN 1..20 LOOP
        EXECUTE format(
            'CREATE TABLE product_line_%s (id bigint PRIMARY KEY, name text, price numeric(10,2),'
            ' updated_at timestamptz NOT NULL DEFAULT now())',
            to_char(n, 'FM00'));
        EXECUTE format('CREATE INDEX ON product_line_%s (updated_at)', to_char(n, 'FM00'));
        EXECUTE format(
            'INSERT INTO product_line_%s SELECT i, ''product '' || i, i * 1.5,'
            ' timestamptz ''2026-01-01 00:00+00'' + i * interval ''1 minute'''
            ' FROM generate_series(1, 40) i',
            to_char(n, 'FM00'));
    END LOOP;
END $$;

-- Twelve small lists that nothing stamps.
DO $$
BEGIN
    FOR n IN 1..12 LOOP
        EXECUTE format('CREATE TABLE list_%s (code text PRIMARY KEY, label text NOT NULL)',
                       to_char(n, 'FM00'));
        EXECUTE format('INSERT INTO list_%s SELECT ''c'' || i, ''label '' || i'
                       ' FROM generate_series(1, 10) i', to_char(n, 'FM00'));
    END LOOP;
END $$;

-- Four with a composite key; their cursors go by other names.
CREATE TABLE stock (depot text, product int, pieces int, changed_at timestamptz NOT NULL DEFAULT now(),
                    PRIMARY KEY (depot, product));
CREATE TABLE prices (country text, product int, price numeric, last_modified timestamptz NOT NULL DEFAULT now(),
                     PRIMARY KEY (country, product));
CREATE TABLE order_lines (order_id bigint, line int, product int, pieces int,
                          modified_at timestamp NOT NULL DEFAULT localtimestamp, PRIMARY KEY (order_id, line));
CREATE TABLE translations (language text, key text, value text, PRIMARY KEY (language, key));
INSERT INTO stock SELECT 'depot ' || d, p, d * p, '2026-01-02 00:00+00' FROM generate_series(1, 3) d, generate_series(1, 20) p;
INSERT INTO prices SELECT c, p, p * 2.5, '2026-01-02 00:00+00' FROM unnest(ARRAY['de', 'fr', 'pt']) c, generate_series(1, 20) p;
INSERT INTO order_lines SELECT o, l, l, 1, '2026-01-03 00:00' FROM generate_series(1, 50) o, generate_series(1, 3) l;
INSERT INTO translations SELECT l, 'key ' || k, l || ' ' || k FROM unnest(ARRAY['de', 'fr']) l, generate_series(1, 15) k;

-- A key that is only a unique index, a cursor that may be NULL, and no key at all.
CREATE TABLE customers (email text NOT NULL, name text, updated_at timestamptz NOT NULL DEFAULT now());
CREATE UNIQUE INDEX ON customers (email);
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10,2), updated_at timestamptz);
CREATE TABLE page_hits (path text, hits int);
CREATE TABLE searches (words text, updated_at timestamptz NOT NULL DEFAULT now());
INSERT INTO customers SELECT 'c' || i || '@example.com', 'customer ' || i, '2026-01-04 00:00+00' FROM generate_series(1, 60) i;
INSERT INTO orders SELECT i, 'c' || i || '@example.com', i * 10, CASE WHEN i % 10 > 0 THEN timestamptz '2026-01-05 00:00+00' END
FROM generate_series(1, 50) i;
INSERT INTO page_hits SELECT '/page/' || i % 7, i FROM generate_series(1, 30) i;
INSERT INTO searches SELECT 'word ' || i % 5, '2026-01-05 00:00+00' FROM generate_series(1, 30) i;

-- Only new rows are stamped: nothing here rises when a row changes.
CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount numeric, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE visits (id bigserial PRIMARY KEY, path text);
CREATE TABLE audit_log (id bigserial PRIMARY KEY, what text, created_at timestamptz NOT NULL DEFAULT now());
INSERT INTO payments (amount) SELECT i FROM generate_series(1, 40) i;
INSERT INTO visits (path) SELECT '/page/' || i FROM generate_series(1, 40) i;
INSERT INTO audit_log (what) SELECT 'event ' || i FROM generate_series(1, 40) i;

-- Odd names.
CREATE TABLE "Legacy Customers" ("Id" int PRIMARY KEY, "LastModified" timestamptz NOT NULL DEFAULT now());
CREATE TABLE "v1.invoices" (id int PRIMARY KEY, "updated At" timestamptz NOT NULL DEFAULT now());
CREATE TABLE "50%_off" (id int PRIMARY KEY, "quote""d" text);
CREATE TABLE größen (id int PRIMARY KEY, größe text, updated_at timestamptz NOT NULL DEFAULT now());
INSERT INTO "Legacy Customers" SELECT i, '2026-01-06 00:00+00' FROM generate_series(1, 10) i;
INSERT INTO "v1.invoices" SELECT i, '2026-01-06 00:00+00' FROM generate_series(1, 10) i;
INSERT INTO "50%_off" SELECT i, 'q' || i FROM generate_series(1, 10) i;
INSERT INTO größen SELECT i, 'XL', '2026-01-06 00:00+00' FROM generate_series(1, 10) i;

-- Nothing in it yet, and one whose cursor counts seconds.
CREATE TABLE returns (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE sensors (id int PRIMARY KEY, value float8, updated_at bigint NOT NULL);
INSERT INTO sensors SELECT i, i / 3.0, 1767225600 + i FROM generate_series(1, 20) i;

-- A partitioned table: its partitions are loaded through it.
CREATE TABLE events (id bigint, at date NOT NULL, what text, updated_at timestamptz NOT NULL DEFAULT now(),
                     PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE events_2025 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
INSERT INTO events SELECT i, date '2025-12-01' + i, 'event ' || i, '2026-02-10 00:00+00' FROM generate_series(1, 60) i;

-- Two views, of which the project names one, and a table that it excludes.
CREATE VIEW order_totals AS SELECT order_id, sum(pieces) AS pieces FROM order_lines GROUP BY 1;
CREATE VIEW cheap_products AS SELECT * FROM product_line_01 WHERE price < 10;
CREATE TABLE tmp_import (line text);
