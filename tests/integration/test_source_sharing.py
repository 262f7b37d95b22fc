"""However a batch is shared out among tasks, each of its rows is read exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from integration.conftest import Database
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import RelationKind
from tidegate.model.cursor import CursorType, NullPolicy
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import OWN_PATH, Connection, connect
from tidegate.sources.horizon import CursorColumn
from tidegate.sources.postgres import PostgresSource

KINDS = {
    "table": "CREATE TABLE orders (id int PRIMARY KEY, c bigint, pad text)",
    "indexed": "CREATE TABLE orders (id int PRIMARY KEY, c bigint, pad text);"
    " CREATE INDEX ON orders (c)",
    "partitioned": "CREATE TABLE orders (id int PRIMARY KEY, c bigint, pad text)"
    " PARTITION BY RANGE (id);"
    " CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (30);"
    " CREATE TABLE orders_2 PARTITION OF orders DEFAULT",
    "inherited": "CREATE TABLE orders (id int PRIMARY KEY, c bigint, pad text);"
    " CREATE TABLE orders_1 () INHERITS (orders)",
    "view": "CREATE TABLE orders_1 (id int PRIMARY KEY, c bigint, pad text);"
    " CREATE VIEW orders AS SELECT * FROM orders_1",
}


@pytest.fixture
def session(database: Database) -> Any:
    with connect(database.conninfo, name="the source") as opened:
        opened.execute(f"SET {OWN_PATH}")
        yield opened


def source(session: Connection, null_policy: NullPolicy | None) -> PostgresSource:
    table = describe_table(session, Relation("public", "orders"))
    assert table is not None
    cursor = CursorColumn(table, "c", CursorType.BIGINT, 60.0)
    return PostgresSource(table, table.columns, ("id",), cursor, null_policy, None, 1000)


def read(session: Connection, statements: list[str]) -> list[int]:
    return sorted(row[0] for one in statements for row in session.execute(one))  # type: ignore[arg-type]


def statements(
    session: Connection, found: PostgresSource, batch: Batch, partitions: int | None
) -> list[str]:
    return found.read_statements(
        session, batch, [sql.Identifier("id")], partitions=partitions, parallelism=2
    )


BATCHES = [
    Batch(BatchKind.RANGE, None, "5", rows=50),
    Batch(BatchKind.RANGE, "2", "6", rows=50),
    Batch(BatchKind.LOOKBACK, "-1", "4", rows=50),
    Batch(BatchKind.FULL, None, "7", rows=50),
    Batch(BatchKind.NULLS, rows=50),
    Batch(BatchKind.TIE, "3", "4", None, ("40",), rows=50),
    Batch(BatchKind.TIE, "3", "4", ("40",), None, closes_tie=True, rows=50),
]


def fill(session: Connection, kind: str, values: list[int | None]) -> None:
    session.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    session.execute(KINDS[kind])  # type: ignore[arg-type]
    table = "orders_1" if kind == "view" else "orders"
    with session.cursor().copy(f"COPY {table} FROM STDIN") as copy:  # type: ignore[arg-type]
        for number, value in enumerate(values, 1):
            copy.write_row((number, value, "x" * 900))
    if kind == "inherited":
        session.execute("INSERT INTO orders_1 SELECT id + 1000, c, pad FROM ONLY orders")


def expected(session: Connection, found: PostgresSource, batch: Batch) -> list[int]:
    whole = sql.SQL("SELECT id FROM orders WHERE {}").format(found.condition(batch))
    return read(session, [whole.as_string(session)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_is_shared_out_without_loss(session: Connection, kind: str) -> None:
    fill(session, kind, [None if n % 9 == 0 else n % 9 for n in range(80)])
    for policy in (None, NullPolicy.INCLUDE):
        found = source(session, policy)
        for batch in BATCHES:
            wanted = expected(session, found, batch)
            assert wanted
            assert read(session, statements(session, found, batch, 4)) == wanted


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(st.none() | st.integers(0, 8), max_size=80),
    batch=st.sampled_from(BATCHES),
    partitions=st.integers(1, 9),
    include_nulls=st.booleans(),
)
def test_every_row_of_a_batch_is_read_by_exactly_one_statement(
    session: Connection,
    kind: str,
    values: list[int | None],
    batch: Batch,
    partitions: int,
    include_nulls: bool,
) -> None:
    fill(session, kind, values)
    found = source(session, NullPolicy.INCLUDE if include_nulls else None)
    wanted = expected(session, found, batch)
    assert read(session, statements(session, found, batch, partitions)) == wanted


def test_a_large_share_of_a_table_is_read_by_blocks_and_a_small_one_by_its_index(
    session: Connection,
) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c bigint NOT NULL, pad text)")
    session.execute("CREATE INDEX ON orders (c)")
    session.execute(
        "INSERT INTO orders SELECT i, i, repeat('x', 500) FROM generate_series(1, 1000) i"
    )
    session.execute("ANALYZE orders")
    found = source(session, None)
    assert found.table.kind is RelationKind.TABLE
    whole = statements(session, found, Batch(BatchKind.RANGE, None, "1000", rows=1000), 4)
    assert len(whole) == 4
    assert all("ctid" in one for one in whole)
    small = statements(session, found, Batch(BatchKind.RANGE, "900", "1000", rows=100), 4)
    assert len(small) == 4
    assert not any("ctid" in one for one in small)
    assert read(session, small) == list(range(901, 1001))


def test_rows_that_arrive_after_the_pages_were_counted_are_read_too(session: Connection) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c bigint NOT NULL, pad text)")
    grow = "INSERT INTO orders SELECT i, i, repeat('x', 900) FROM generate_series({}, {}) i"
    session.execute(grow.format(1, 50))  # type: ignore[arg-type]
    found = source(session, None)
    session.execute(grow.format(51, 200))  # type: ignore[arg-type]
    batch = Batch(BatchKind.RANGE, None, "200", rows=200)
    assert read(session, statements(session, found, batch, 3)) == list(range(1, 201))


def test_without_a_wish_small_batches_are_read_by_one_task(session: Connection) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c bigint NOT NULL, pad text)")
    found = source(session, None)
    for rows, expected in ((0, 1), (1, 1), (125_000, 1)):
        batch = Batch(BatchKind.RANGE, None, "9", rows=rows)
        assert len(statements(session, found, batch, None)) == expected


def test_names_are_quoted_in_every_statement(session: Connection) -> None:
    name, column = 'Or"ders; DROP TABLE x --', "C'\"%s"
    identifier, quoted = sql.Identifier(name), sql.Identifier(column)
    session.execute(
        sql.SQL("CREATE TABLE {} ({} bigint PRIMARY KEY, pad text)").format(identifier, quoted)
    )
    session.execute(
        sql.SQL("INSERT INTO {} SELECT i, repeat('x', 900) FROM generate_series(1, 99) i").format(
            identifier
        )
    )
    table = describe_table(session, Relation("public", name))
    assert table is not None
    cursor = CursorColumn(table, column, CursorType.BIGINT, 60.0)
    found = PostgresSource(table, table.columns, (column,), cursor, None, None, 10)
    batch = Batch(BatchKind.RANGE, None, "99", rows=99)
    shares = found.read_statements(session, batch, [quoted], partitions=4, parallelism=2)
    assert read(session, shares) == list(range(1, 100))
