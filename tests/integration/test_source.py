"""The source: bounded batches, ties, lookback, NULLs, and statements that share out a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from integration.conftest import Database
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import SourceError
from tidegate.core.relation import Relation, RelationKind
from tidegate.core.watermark import CursorType, Guarantee, Horizon, NullPolicy, Session, Watermark
from tidegate.load.sources.horizon import CursorColumn
from tidegate.load.sources.postgres import PostgresSource
from tidegate.load.sources.reading import reading
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import OWN_PATH, Connection, connect

EVERYTHING = Horizon("1000000", Guarantee.EXACT, "")
START = Watermark("shop.orders", "raw.orders")


def open_source(
    session: Connection, name: str = "orders", cursor: str = "c", **options: Any
) -> PostgresSource:
    table = describe_table(session, Relation("public", name))
    assert table is not None
    column = table.column(cursor)
    assert column is not None
    kind = CursorType.of(column.wire)
    assert kind is not None
    values: dict[str, Any] = {"null_policy": None, "lookback": None, "batch_rows": 10, **options}
    key = values.pop("key", table.primary_key)
    return PostgresSource(
        table, table.columns, key, CursorColumn(table, cursor, kind, 60.0), **values
    )


def ids(session: Connection, source: PostgresSource, batch: Batch) -> list[Any]:
    rows = session.execute(
        sql.SQL("SELECT id FROM {} WHERE {} ORDER BY 1").format(
            source.relation, source.condition(batch)
        )
    )
    return [row[0] for row in rows]


def load_all(
    session: Connection, source: PostgresSource, start: Watermark = START, **limits: Any
) -> tuple[list[tuple[Batch, list[Any]]], Watermark]:
    """Every batch up to the horizon with its ids, as a sync would load them."""
    horizon = replace(EVERYTHING, **limits)
    found: list[tuple[Batch, list[Any]]] = []
    watermark = start
    while (batch := source.next_batch(session, watermark, horizon)) is not None:
        found.append((batch, ids(session, source, batch)))
        watermark = watermark.after(batch, batch.rows, "u")
        assert len(found) < 200
    return found, watermark


def all_ids(batches: list[tuple[Batch, list[Any]]]) -> list[Any]:
    return [one for _, rows in batches for one in rows]


@pytest.fixture
def session(database: Database) -> Any:
    with connect(database.conninfo, name="the source") as opened:
        opened.execute(f"SET {OWN_PATH}")
        yield opened


def orders(session: Connection, *values: int | None) -> None:
    session.execute("DROP TABLE IF EXISTS orders")
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c bigint)")
    with session.cursor().copy("COPY orders FROM STDIN") as copy:
        for number, value in enumerate(values, 1):
            copy.write_row((number, value))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(1, 36), [("range", 10), ("range", 10), ("range", 10), ("range", 5)]),
        # A batch ends before a value that it cannot take whole.
        ([*[1] * 6, *[2] * 6, *[3] * 9], [("range", 6), ("range", 6), ("range", 9)]),
        # One that is larger than a batch is split by key.
        (
            [1, 2, *[7] * 25, 9],
            [("range", 2), ("tie", 10), ("tie", 10), ("closing tie", 5), ("range", 1)],
        ),
        ([7] * 10, [("range", 10)]),
        ([7] * 20, [("tie", 10), ("closing tie", 10)]),
    ],
)
def test_batches_hold_at_most_batch_rows_and_every_row_once(
    session: Connection, values: list[int], expected: list[tuple[str, int]]
) -> None:
    orders(session, *values)
    batches, watermark = load_all(session, open_source(session))
    found = [("closing " * batch.closes_tie + batch.kind, len(rows)) for batch, rows in batches]
    assert found == expected
    assert all_ids(batches) == list(range(1, len(values) + 1))
    assert all(batch.rows == len(rows) for batch, rows in batches)
    assert (watermark.value, watermark.position) == (str(values[-1]), None)


def test_the_watermark_stands_below_a_tie_until_it_is_complete(session: Connection) -> None:
    orders(session, 1, *[7] * 25)
    source, watermark = open_source(session), START
    values = []
    while (batch := source.next_batch(session, watermark, EVERYTHING)) is not None:
        watermark = watermark.after(batch, batch.rows, "u")
        values.append((watermark.value, watermark.position))
    assert values == [("1", None), ("1", ("7", "11")), ("1", ("7", "21")), ("7", None)]


def test_a_tie_is_split_by_a_composite_key_of_any_type(session: Connection) -> None:
    session.execute(
        'CREATE TABLE orders (id int, "Kü\'n""d" text, on_day date, c bigint,'
        ' PRIMARY KEY ("Kü\'n""d", on_day, id))'
    )
    session.execute(
        "INSERT INTO orders SELECT i, E'a\\'\\\\\"' || i % 3, date '2026-01-01' + i % 5, 7"
        " FROM generate_series(1, 60) i"
    )
    batches, _ = load_all(session, open_source(session))
    assert sorted(all_ids(batches)) == list(range(1, 61))
    assert [len(rows) for _, rows in batches] == [10] * 6


def test_rows_without_a_key_inside_a_tie_are_refused_not_passed_over(session: Connection) -> None:
    session.execute("CREATE TABLE orders (id int UNIQUE, c bigint NOT NULL)")
    session.execute("INSERT INTO orders SELECT nullif(i, 7), 1 FROM generate_series(1, 30) i")
    source = open_source(session, key=("id",))
    with pytest.raises(SourceError, match=r"1 rows of public\.orders have no value in their key"):
        source.next_batch(session, START, EVERYTHING)


def test_nothing_above_the_horizon_is_read(session: Connection) -> None:
    orders(session, *range(1, 30))
    batches, watermark = load_all(session, open_source(session), high="12")
    assert watermark.value == "12"
    assert (
        open_source(session).next_batch(session, watermark, replace(EVERYTHING, high="5")) is None
    )
    assert open_source(session).next_batch(session, START, replace(EVERYTHING, high=None)) is None
    assert len(batches) == 2


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(st.integers(-3, 8), max_size=60),
    batch_rows=st.integers(1, 7),
    high=st.integers(-3, 9),
)
def test_whatever_the_data_batches_cover_everything_once_within_their_bound(
    session: Connection, values: list[int], batch_rows: int, high: int
) -> None:
    orders(session, *values)
    batches, _ = load_all(session, open_source(session, batch_rows=batch_rows), high=str(high))
    loaded = all_ids(batches)
    assert sorted(loaded) == [n for n, value in enumerate(values, 1) if value <= high]
    assert all(len(rows) <= batch_rows for _, rows in batches)
    assert all(batch.rows == len(rows) for batch, rows in batches)


def test_a_lookback_is_a_slice_of_its_own_up_to_the_watermark(session: Connection) -> None:
    orders(session, *range(1, 41))
    source = open_source(session, lookback=15)
    first = source.lookback_batch(session, "30", None)
    assert first is not None
    assert (first.kind, first.low, first.high) == (BatchKind.LOOKBACK, "15", "25")
    second = source.lookback_batch(session, "30", first.high)
    assert second is not None
    assert ids(session, source, first) + ids(session, source, second) == list(range(16, 31))
    assert source.lookback_batch(session, "30", second.high) is None
    assert open_source(session).lookback_batch(session, "30", None) is None


def test_a_lookback_is_counted_back_from_the_watermark(session: Connection) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c smallint NOT NULL)")
    session.execute("INSERT INTO orders VALUES (1, -32768), (2, 0)")
    source = open_source(session, lookback=40000)
    batch = source.lookback_batch(session, "0", None)
    assert batch is not None
    assert ids(session, source, batch) == [1, 2], "it reaches below what the type can hold"

    session.execute("DROP TABLE orders")
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c timestamptz NOT NULL)")
    session.execute(
        "INSERT INTO orders SELECT i, timestamptz '2026-03-29 00:00+00' + i * interval '1 minute'"
        " FROM generate_series(1, 60) i"
    )
    source = open_source(session, lookback="600.000000 seconds", batch_rows=100)
    batch = source.lookback_batch(session, "2026-03-29 00:30:00+00", None)
    assert batch is not None
    assert ids(session, source, batch) == list(range(21, 31))


def test_a_fingerprint_tells_whether_any_row_of_a_slice_changed(session: Connection) -> None:
    orders(session, *range(1, 21))
    source = open_source(session)
    batch = Batch(BatchKind.LOOKBACK, "5", "15")
    before = source.fingerprint(session, batch)
    assert source.fingerprint(session, batch) == before
    session.execute("INSERT INTO orders VALUES (100, 16)")
    assert source.fingerprint(session, batch) == before
    for change in (
        "UPDATE orders SET c = 11 WHERE id = 10",
        "INSERT INTO orders VALUES (101, 15)",
        "DELETE FROM orders WHERE id = 8",
    ):
        session.execute(change)
        after = source.fingerprint(session, batch)
        assert after != before
        before = after


def test_rows_without_a_cursor_follow_the_policy(session: Connection) -> None:
    orders(session, 1, None, 3, None)
    assert open_source(session).null_batch(session) is None
    assert open_source(session, null_policy=NullPolicy.EXCLUDE).null_batch(session) is None
    included = open_source(session, null_policy=NullPolicy.INCLUDE)
    batch = included.null_batch(session)
    assert batch is not None
    assert (batch.rows, ids(session, included, batch)) == (2, [2, 4])
    with pytest.raises(SourceError, match=r"2 rows of public\.orders have no c") as raised:
        open_source(session, null_policy=NullPolicy.RAISE).null_batch(session)
    assert 'null_cursor = "include" or "exclude"' in str(raised.value)
    session.execute("DELETE FROM orders WHERE c IS NULL")
    assert included.null_batch(session) is None
    assert open_source(session, null_policy=NullPolicy.RAISE).null_batch(session) is None


@pytest.mark.parametrize(("key", "beyond"), [(("id",), [5]), ((), [])])
def test_a_full_batch_ends_at_the_horizon_only_where_rows_have_no_key(
    session: Connection, key: tuple[str, ...], beyond: list[int]
) -> None:
    orders(session, 1, None, 3, 4, 9)
    for policy, up_to in (
        (None, [1, 3, 4]),
        (NullPolicy.EXCLUDE, [1, 3, 4]),
        (NullPolicy.INCLUDE, [1, 2, 3, 4]),
    ):
        expected = [*up_to, *beyond]
        source = open_source(session, null_policy=policy, key=key)
        batch = source.full_batch(session, replace(EVERYTHING, high="5"))
        assert (batch.kind, batch.high, batch.rows) == ("full", "4", len(expected))
        assert ids(session, source, batch) == expected


def test_a_full_batch_of_few_rows(session: Connection) -> None:
    orders(session, None, None)
    source = open_source(session, null_policy=NullPolicy.INCLUDE)
    batch = source.full_batch(session, replace(EVERYTHING, high="5"))
    assert (batch.rows, ids(session, source, batch)) == (2, [1, 2])
    orders(session)
    held = replace(EVERYTHING, high=None, held_by=Session("process 7", None))
    assert open_source(session).full_batch(session, held).rows == 0
    session.execute("INSERT INTO orders VALUES (1, 1)")
    with pytest.raises(SourceError, match="held back by process 7"):
        open_source(session).full_batch(session, held)


def test_all_readers_of_a_snapshot_see_the_same(database: Database, session: Connection) -> None:
    orders(session, 1, 2)
    with database.connect() as reader:
        with reading(session, open_source(session), 5) as snapshot:
            database.execute("INSERT INTO orders VALUES (3, 3)")
            for statement in snapshot.entering():
                reader.execute(statement)
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        reader.execute("ROLLBACK")
    assert session.execute("SELECT count(*) FROM orders").fetchone() == (3,)


# --- however a batch is shared out among tasks, each of its rows is read exactly once

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


def whole_source(session: Connection, null_policy: NullPolicy | None) -> PostgresSource:
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
        found = whole_source(session, policy)
        for batch in BATCHES:
            wanted = expected(session, found, batch)
            assert wanted
            assert read(session, statements(session, found, batch, 4)) == wanted


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(list(KINDS)),
    values=st.lists(st.none() | st.integers(0, 8), max_size=80),
    batch=st.sampled_from(BATCHES),
    partitions=st.integers(1, 9),
    policy=st.sampled_from([None, NullPolicy.INCLUDE]),
)
def test_every_row_of_a_batch_is_read_by_exactly_one_statement(
    session: Connection,
    kind: str,
    values: list[int | None],
    batch: Batch,
    partitions: int,
    policy: NullPolicy | None,
) -> None:
    fill(session, kind, values)
    found = whole_source(session, policy)
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
    found = whole_source(session, None)
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
    found = whole_source(session, None)
    for rows in (0, 1, 125_000):
        small = Batch(BatchKind.RANGE, None, "9", rows=rows)
        assert len(statements(session, found, small, None)) == 1, "one task, without a wish"
    grow = "INSERT INTO orders SELECT i, i, repeat('x', 900) FROM generate_series({}, {}) i"
    session.execute(grow.format(1, 50))  # type: ignore[arg-type]
    found = whole_source(session, None)
    session.execute(grow.format(51, 200))  # type: ignore[arg-type]
    batch = Batch(BatchKind.RANGE, None, "200", rows=200)
    assert read(session, statements(session, found, batch, 3)) == list(range(1, 201))


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
