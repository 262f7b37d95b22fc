-- A day in the shop: rows change, come and go, in tables of every kind.
UPDATE product_line_01 SET price = price + 1, updated_at = now() WHERE id <= 5;
INSERT INTO product_line_20 (id, name, price) VALUES (41, 'new', 9.99);
UPDATE list_03 SET label = 'another label' WHERE code = 'c1';
DELETE FROM list_04 WHERE code = 'c2';
UPDATE stock SET pieces = 0, changed_at = now() WHERE product = 7;
UPDATE customers SET name = 'renamed', updated_at = now() WHERE email = 'c1@example.com';
UPDATE orders SET total = 0 WHERE updated_at IS NULL;
INSERT INTO page_hits VALUES ('/new', 1);
UPDATE payments SET amount = -1 WHERE id = 3;
INSERT INTO audit_log (what) VALUES ('changed');
UPDATE "Legacy Customers" SET "LastModified" = now() WHERE "Id" = 1;
UPDATE sensors SET value = 0, updated_at = updated_at + 1000 WHERE id = 2;
INSERT INTO returns VALUES (1);
UPDATE events SET what = 'corrected', updated_at = now() WHERE id = 12;
UPDATE order_lines SET pieces = 2, modified_at = localtimestamp WHERE order_id = 1;
