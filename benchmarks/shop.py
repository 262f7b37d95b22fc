"""The table that is moved: 13 columns of the usual kinds, deterministic."""

from __future__ import annotations

import psycopg

from tidegate.postgres.connection import Connection
from tidegate.postgres.embedded import USER

COLUMNS = (
    "id", "customer_id", "status", "currency", "total", "tax", "quantity", "paid", "note",
    "placed_on", "created_at", "updated_at", "reference",
)  # fmt: skip

TABLE = """
CREATE TABLE {name} (
    id bigint PRIMARY KEY, customer_id integer NOT NULL, status text NOT NULL,
    currency char(3) NOT NULL, total numeric(12,2) NOT NULL, tax numeric(12,2) NOT NULL,
    quantity integer NOT NULL, paid boolean NOT NULL, note text, placed_on date NOT NULL,
    created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, reference uuid NOT NULL
)
"""

ROWS = """
INSERT INTO orders
SELECT g, g % 50000, (ARRAY['new','paid','sent','done'])[1 + g % 4], 'EUR',
       (g % 100000) / 100.0, (g % 10000) / 100.0, g % 10, g % 2 = 0, 'note number ' || g,
       date '2026-01-01' + (g % 300)::int,
       timestamptz '2026-01-01' + g * interval '1 second',
       timestamptz '2026-01-01' + g * interval '1 second',
       md5(g::text)::uuid
FROM generate_series({first}, {last}) g
"""


def checkpoint(connection: Connection) -> None:
    """Write everything out now; only the superuser of the embedded server may ask for it."""
    parameters = {**connection.info.get_parameters(), "user": USER}
    with psycopg.connect(**parameters, autocommit=True) as superuser:
        superuser.execute("CHECKPOINT")


def make_source(connection: Connection, rows: int) -> None:
    """The source table with its key and an index on the cursor."""
    connection.execute("DROP TABLE IF EXISTS orders")
    connection.execute(TABLE.format(name="orders"))
    for first in range(1, rows + 1, 500_000):
        last = min(first + 499_999, rows)
        connection.execute(ROWS.format(first=first, last=last))
    connection.execute("CREATE INDEX ON orders (updated_at)")
    connection.execute("VACUUM (ANALYZE) orders")
    checkpoint(connection)


def make_target(connection: Connection, name: str) -> None:
    """An empty target with a primary key and one more index, the same for every side."""
    connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute(TABLE.format(name=name))
    connection.execute(f"CREATE INDEX ON {name} (customer_id)")


def highest_cursor(connection: Connection) -> str:
    row = connection.execute("SELECT max(updated_at)::text FROM orders").fetchone()
    assert row is not None
    return str(row[0])


def change_one_percent(connection: Connection) -> None:
    connection.execute(
        "UPDATE orders SET status = 'changed', total = total + 1, updated_at = clock_timestamp()"
        " WHERE id % 100 = 7"
    )
    connection.execute("ANALYZE orders")


def agrees(source: Connection, target: Connection, name: str) -> bool:
    """Whether both tables hold the same rows."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"
    left = source.execute(query.format("orders")).fetchone()
    right = target.execute(query.format(name)).fetchone()
    return left == right
