"""The source: bounded batches, ties, lookback, NULLs, and statements that share out a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from integration.conftest import Database
from tidegate.errors import SourceError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import CursorType, Guarantee, NullPolicy
from tidegate.model.horizon import Horizon, Session
from tidegate.model.relation import Relation
from tidegate.model.watermark import Watermark
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import OWN_PATH, Connection, connect
from tidegate.sources.horizon import CursorColumn
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.reading import reading

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


def test_batches_hold_at_most_batch_rows_and_every_row_once(session: Connection) -> None:
    orders(session, *range(1, 36))
    batches, watermark = load_all(session, open_source(session))
    assert [len(rows) for _, rows in batches] == [10, 10, 10, 5]
    assert all_ids(batches) == list(range(1, 36))
    assert all(batch.rows == len(rows) for batch, rows in batches)
    assert (watermark.value, watermark.position) == ("35", None)


def test_a_batch_ends_before_a_value_it_cannot_take_whole(session: Connection) -> None:
    orders(session, *[1] * 6, *[2] * 6, *[3] * 9)
    batches, _ = load_all(session, open_source(session))
    assert [(batch.kind, batch.high, len(rows)) for batch, rows in batches] == [
        ("range", "1", 6),
        ("range", "2", 6),
        ("range", "3", 9),
    ]


def test_a_tie_larger_than_a_batch_is_split_by_key_and_resumed(session: Connection) -> None:
    orders(session, 1, 2, *[7] * 25, 9)
    source = open_source(session)
    batches, watermark = load_all(session, source)
    assert [(batch.kind, len(rows)) for batch, rows in batches] == [
        ("range", 2),
        ("tie", 10),
        ("tie", 10),
        ("tie", 5),
        ("range", 1),
    ]
    assert [batch.closes_tie for batch, _ in batches] == [False, False, False, True, False]
    assert all_ids(batches) == list(range(1, 29))
    assert watermark.value == "9"


def test_the_watermark_stands_below_a_tie_until_it_is_complete(session: Connection) -> None:
    orders(session, 1, *[7] * 25)
    source, watermark = open_source(session), START
    values = []
    while (batch := source.next_batch(session, watermark, EVERYTHING)) is not None:
        watermark = watermark.after(batch, batch.rows, "u")
        values.append((watermark.value, watermark.position))
    assert values == [("1", None), ("1", ("7", "11")), ("1", ("7", "21")), ("7", None)]


def test_a_tie_of_exactly_the_limit_is_no_tie_and_one_of_its_multiple_ends_clean(
    session: Connection,
) -> None:
    orders(session, *[7] * 10)
    batches, _ = load_all(session, open_source(session))
    assert [(batch.kind, len(rows)) for batch, rows in batches] == [("range", 10)]
    orders(session, *[7] * 20)
    batches, watermark = load_all(session, open_source(session))
    assert [(batch.kind, len(rows)) for batch, rows in batches] == [("tie", 10), ("tie", 10)]
    assert (watermark.value, watermark.position) == ("7", None)


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
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


def test_a_lookback_may_reach_below_what_the_type_can_hold(session: Connection) -> None:
    session.execute("CREATE TABLE orders (id int PRIMARY KEY, c smallint NOT NULL)")
    session.execute("INSERT INTO orders VALUES (1, -32768), (2, 0)")
    source = open_source(session, lookback=40000)
    batch = source.lookback_batch(session, "0", None)
    assert batch is not None
    assert ids(session, source, batch) == [1, 2]


def test_a_lookback_in_time_is_counted_back_from_the_watermark(session: Connection) -> None:
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


def test_a_full_batch_of_rows_without_a_cursor_is_not_empty(session: Connection) -> None:
    orders(session, None, None)
    source = open_source(session, null_policy=NullPolicy.INCLUDE)
    batch = source.full_batch(session, replace(EVERYTHING, high="5"))
    assert (batch.rows, ids(session, source, batch)) == (2, [1, 2])


def test_a_full_batch_of_an_empty_source_is_empty_and_a_held_back_one_refused(
    session: Connection,
) -> None:
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
