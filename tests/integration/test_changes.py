"""Changes of a real slot: decoded, folded, landed, staged and published into Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integration.change_stream import ChangeStream
from integration.conftest import MakePlace
from tidegate.errors import DestinationError, SourceError
from tidegate.model.relation import Relation
from tidegate.pipeline.landing import Chunks

MakeStream = Callable[..., ChangeStream]
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, name text, total numeric(10,2), at timestamptz)"


@pytest.fixture
def make_stream(make_place: MakePlace) -> Iterator[MakeStream]:
    made: list[ChangeStream] = []

    def make(*ddl: str, publication: str | None = None, **options: Any) -> ChangeStream:
        place = make_place(databases=2)
        stream = ChangeStream(place.open(), place, **options)
        made.append(stream)
        stream.open(*ddl, **({} if publication is None else {"options": publication}))
        return stream

    yield make
    for stream in made:
        stream.close()


def check(stream: ChangeStream) -> None:
    assert stream.target_rows() == stream.source_rows()


def test_inserts_updates_and_deletes_arrive(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute(
        "INSERT INTO orders SELECT n, 'name ' || n, n / 3.0, '2026-01-01'::timestamptz + n * '1h'"
        "::interval FROM generate_series(1, 100) n"
    )
    landed, published = stream.load()
    assert landed.changes == 100
    assert published is not None
    assert published.changed == 100
    check(stream)
    source.execute(
        "UPDATE orders SET name = NULL, total = 'NaN' WHERE id < 20",
        "DELETE FROM orders WHERE id BETWEEN 10 AND 30",
        "INSERT INTO orders VALUES (500, '', 1, NULL)",
    )
    landed, published = stream.load()
    assert (landed.changes, landed.more, landed.truncated) == (41, False, False)
    assert published is not None
    check(stream)
    assert stream.load()[0].high is None


def test_a_key_that_changes_takes_its_row_along(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, 9) n")
    stream.load()
    source.execute(
        # a swap, a chain, and a place that is taken again
        "BEGIN; UPDATE orders SET id = -1 WHERE id = 1; UPDATE orders SET id = 1 WHERE id = 2;"
        "UPDATE orders SET id = 2 WHERE id = -1; COMMIT",
        "BEGIN; UPDATE orders SET id = 33 WHERE id = 3; UPDATE orders SET id = 333 WHERE id = 33;"
        "UPDATE orders SET id = 3333 WHERE id = 333; COMMIT",
        "UPDATE orders SET id = 44 WHERE id = 4; INSERT INTO orders VALUES (4, 'new')",
        "UPDATE orders SET id = 55 WHERE id = 5; DELETE FROM orders WHERE id = 55",
    )
    stream.load()
    check(stream)


@pytest.mark.parametrize("chunk_rows", [1, 2, 5, 100])
def test_large_values_that_were_not_sent_stay_what_they_were(
    make_stream: MakeStream, chunk_rows: int
) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, body text, more text)",
        "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL",
        chunks=Chunks(rows=chunk_rows),
    )
    source = stream.place.source
    source.execute(
        "INSERT INTO orders SELECT n, n, repeat(n::text, 9000), repeat('m' || n, 9000)"
        " FROM generate_series(1, 8) n"
    )
    stream.load()
    source.execute(
        "UPDATE orders SET n = n + 100 WHERE id = 1",  # from the target
        "UPDATE orders SET body = repeat('x', 9000) WHERE id = 2",
        "UPDATE orders SET n = n + 100 WHERE id = 2",  # one from the batch, one from the target
        "INSERT INTO orders VALUES (50, 1, repeat('y', 9000), NULL)",
        "UPDATE orders SET n = 2 WHERE id = 50",  # from the batch alone
        # the values go with the row, by the key that it had
        "UPDATE orders SET id = 60 WHERE id = 3",
        "UPDATE orders SET n = 7 WHERE id = 60",
        "BEGIN; UPDATE orders SET id = -4 WHERE id = 4; UPDATE orders SET id = 4 WHERE id = 5;"
        "UPDATE orders SET id = 5 WHERE id = -4; COMMIT",
        "UPDATE orders SET id = 70 WHERE id = 6; INSERT INTO orders VALUES (6, 0, 'new', 'new')",
        "UPDATE orders SET n = 3 WHERE id = 70",
        "UPDATE orders SET n = 4 WHERE id = 7; DELETE FROM orders WHERE id = 7",
    )
    landed, _ = stream.load()
    assert landed.unfilled
    check(stream)


def test_a_full_replica_identity_sends_all_values(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
    )
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, n, repeat('b', 9000) FROM generate_series(1, 5) n")
    stream.load()
    source.execute(
        "UPDATE orders SET n = 0 WHERE id = 1",
        "UPDATE orders SET id = 20 WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
    )
    landed, _ = stream.load()
    assert not landed.unfilled
    check(stream)


def test_a_replica_identity_by_index_is_as_good_as_a_primary_key(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (a int NOT NULL, b text NOT NULL, c text, UNIQUE (b, a))",
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_b_a_key",
        key=("a", "b"),
    )
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, 'k' || n % 3, 'c' FROM generate_series(1, 20) n")
    stream.load()
    source.execute(
        "UPDATE orders SET b = 'other' WHERE a < 4",
        "UPDATE orders SET c = 'changed' WHERE a > 15",
        "DELETE FROM orders WHERE a = 10",
    )
    stream.load()
    check(stream)


def test_a_toasted_key_is_taken_from_the_old_row(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id text PRIMARY KEY, n int)",
        "ALTER TABLE orders ALTER id SET STORAGE EXTERNAL",
    )
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (repeat('k', 2500), 1), ('short', 1)")
    stream.load()
    source.execute("UPDATE orders SET n = 2", "UPDATE orders SET n = 3 WHERE id <> 'short'")
    stream.load()
    check(stream)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_equal_keys_with_different_texts_are_one_row(
    make_stream: MakeStream, chunk_rows: int, soft: bool
) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id numeric PRIMARY KEY, n int)",
        chunks=Chunks(rows=chunk_rows),
        soft=soft,
    )
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (1.0, 1), (2.0, 1)")
    stream.load()
    source.execute(
        "UPDATE orders SET id = 1.00, n = 2 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (2.000, 5)",
    )
    stream.load()
    columns = "trim_scale(id) AS id, n" if soft else "*"
    assert stream.target_rows(columns) == stream.source_rows(columns)


@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
def test_a_truncate_leaves_what_came_after_it(make_stream: MakeStream, chunk_rows: int) -> None:
    stream = make_stream(ORDERS, chunks=Chunks(rows=chunk_rows))
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 10) n")
    stream.load()
    source.execute(
        "INSERT INTO orders VALUES (20, 'before')",
        "UPDATE orders SET name = 'changed' WHERE id < 4",
        "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (1, 'after'), (30, 'after'), (31, 'x');"
        "DELETE FROM orders WHERE id = 31; COMMIT",
    )
    landed, _ = stream.load()
    assert landed.truncated
    check(stream)
    source.execute("TRUNCATE orders")
    landed, _ = stream.load()
    assert (landed.truncated, landed.rows) == (True, 0)
    assert stream.target_rows() == []
    source.execute("INSERT INTO orders VALUES (5, 'and on')")
    stream.load()
    check(stream)


@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
def test_soft_deletes_mark_rows_with_the_time_of_the_commit(
    make_stream: MakeStream, chunk_rows: int
) -> None:
    stream = make_stream(ORDERS, soft=True, chunks=Chunks(rows=chunk_rows))
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, 6) n")
    stream.load()
    source.execute(
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET name = 'changed' WHERE id = 2; DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (7, 'came and went'); DELETE FROM orders WHERE id = 7",
        "DELETE FROM orders WHERE id = 3; INSERT INTO orders VALUES (3, 'back')",
        "UPDATE orders SET id = 40 WHERE id = 4",
    )
    landed, _ = stream.load()
    rows = stream.place.target.execute(
        "SELECT id, name, deleted_at IS NOT NULL FROM raw.orders ORDER BY id"
    )
    assert rows == [
        (1, "name 1", True),
        (2, "changed", True),
        (3, "back", False),
        (4, "name 4", True),
        (5, "name 5", False),
        (6, "name 6", False),
        (7, "came and went", True),
        (40, "name 4", False),
    ]
    last = stream.place.target.value("SELECT max(deleted_at) FROM raw.orders")
    assert last == landed.committed_at
    source.execute("INSERT INTO orders VALUES (1, 'again')")
    stream.load()
    found = stream.place.target.execute("SELECT name, deleted_at FROM raw.orders WHERE id = 1")
    assert found == [("again", None)]


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_with_soft_deletes_a_truncate_marks_everything(
    make_stream: MakeStream, chunk_rows: int
) -> None:
    stream = make_stream(ORDERS, soft=True, chunks=Chunks(rows=chunk_rows))
    source, target = stream.place.source, stream.place.target
    source.execute("INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 5) n")
    stream.load()
    source.execute("DELETE FROM orders WHERE id = 1")
    first, _ = stream.load()
    source.execute(
        "UPDATE orders SET name = 'changed' WHERE id = 2; INSERT INTO orders VALUES (9, 'nine')",
        "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (3, 'after'); COMMIT",
    )
    second, _ = stream.load()
    assert target.execute("SELECT id, name, deleted_at FROM raw.orders ORDER BY id") == [
        (1, "old", first.committed_at),
        (2, "changed", second.committed_at),
        (3, "after", None),
        (4, "old", second.committed_at),
        (5, "old", second.committed_at),
        (9, "nine", second.committed_at),
    ]


def test_every_type_comes_through_its_text(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN price AS numeric(12,4)",
        "CREATE TABLE orders (id uuid PRIMARY KEY, m mood, p price, n numeric, a int[], t text[],"
        " j jsonb, b bytea, ts timestamptz, tn timestamp, d date, f float8, i interval, c char(5),"
        " v varchar(3), o boolean, rg int4range, net inet, bits bit(4))",
    )
    stream.place.target.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    stream.place.source.execute(
        "INSERT INTO orders VALUES (gen_random_uuid(), 'happy', 1.5, 'NaN', '{1,NULL,3}',"
        """ '{"a b",NULL,"",NULL,"quo\\"te"}', '{"a": [1, null]}', '\\x00ff10', 'infinity',"""
        " '-infinity', 'infinity', '-Infinity', '1 mon -3 days 00:00:01.5', 'ab', 'xyz', true,"
        " '[1,5)', '10.0.0.0/8', B'0101')",
        "INSERT INTO orders VALUES (gen_random_uuid(), 'sad', -0.0001, 1e-30, '{}', '{}', 'null',"
        " '', '0001-01-01 BC', '294276-12-31', '4713-01-01 BC', 'NaN', '0', '', '', false,"
        " 'empty', '::1', B'1111')",
        "INSERT INTO orders (id, t) VALUES (gen_random_uuid(), ARRAY[E'tab\\t\\nline\\\\', '€'])",
    )
    stream.load()
    names = ("id", "m", "p", "n", "a", "t", "j", "b", "ts", "tn", "d", "f", "i", "c", "v", "o")
    columns = ", ".join(f"{name}::text" for name in (*names, "rg", "net", "bits"))
    assert stream.target_rows(columns) == stream.source_rows(columns)


def test_odd_names_are_quoted_wherever_they_go(make_stream: MakeStream) -> None:
    stream = make_stream(
        'CREATE SCHEMA "My Schema"',
        'CREATE TABLE "My Schema"."or""ders %s {}" ("the Id" int PRIMARY KEY, "a ""b""" text,'
        ' "%d" text, "select" text, "ü" text)',
        relation=Relation("My Schema", 'or"ders %s {}'),
        key=("the Id",),
    )
    source = stream.place.source
    table = '"My Schema"."or""ders %s {}"'
    with source.connect() as connection:
        connection.execute(f'ALTER TABLE {table} ALTER "%d" SET STORAGE EXTERNAL')
        connection.execute(f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 9000), 'c', 'd')")
    stream.load()
    with source.connect() as connection:
        connection.execute(f"UPDATE {table} SET \"ü\" = 'e'")
    landed, _ = stream.load()
    assert landed.unfilled
    check(stream)


def test_dropped_and_generated_columns_are_left_out(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (gone text, id int PRIMARY KEY, n int,"
        " double int GENERATED ALWAYS AS (n * 2) STORED, last text)",
        "ALTER TABLE orders DROP COLUMN gone",
    )
    stream.place.source.execute(
        "INSERT INTO orders (id, n, last) VALUES (1, 2, 'x')", "UPDATE orders SET n = 3"
    )
    landed, _ = stream.load()
    assert [column.name for column in landed.columns] == ["id", "n", "last"]
    assert stream.target_rows() == stream.source_rows("id, n, last")


def test_columns_that_are_not_wanted_never_leave_the_source(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (secret text, n int, id int PRIMARY KEY, name text)",
        columns=("id", "name"),
    )
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT 'secret', n, n, 'a' FROM generate_series(1, 3) n")
    landed, _ = stream.load()
    assert [column.name for column in landed.columns] == ["id", "name"]
    source.execute(
        "UPDATE orders SET name = 'b', id = 20 WHERE id = 2; DELETE FROM orders WHERE id = 3"
    )
    stream.load()
    assert stream.target_rows() == stream.source_rows("id, name")


def test_partitions_arrive_as_the_table_that_they_are_part_of(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id int, region text, n int, PRIMARY KEY (id, region))"
        " PARTITION BY LIST (region)",
        "CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a')",
        # the same columns in another order
        "CREATE TABLE orders_b (n int, region text NOT NULL, id int NOT NULL,"
        " PRIMARY KEY (id, region))",
        "ALTER TABLE orders ATTACH PARTITION orders_b FOR VALUES IN ('b')",
        key=("id", "region"),
    )
    source = stream.place.source
    source.execute(
        "INSERT INTO orders SELECT n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, n"
        " FROM generate_series(1, 10) n"
    )
    stream.load()
    check(stream)
    source.execute(
        "UPDATE orders SET region = 'b' WHERE id = 2",
        "UPDATE orders SET n = 100 WHERE id = 3",
        "DELETE FROM orders WHERE id = 4",
    )
    stream.load()
    check(stream)


def test_a_batch_ends_with_the_transaction_that_fills_it(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS, batch_rows=5)
    source = stream.place.source
    for start in range(0, 12, 3):
        source.execute(f"INSERT INTO orders SELECT {start} + n FROM generate_series(1, 3) n")
    landed, _ = stream.load()
    assert (landed.changes, landed.more) == (6, True)
    assert stream.place.target.value("SELECT count(*) FROM raw.orders") == 6
    landed, _ = stream.load()
    assert (landed.changes, landed.more) == (6, True)
    check(stream)
    assert stream.load()[0].changes == 0


def test_a_transaction_that_commits_right_behind_another_is_in_the_next_batch(
    make_stream: MakeStream,
) -> None:
    """Nothing is written between their commits: the one begins where the other ends."""
    stream = make_stream(ORDERS, batch_rows=1)
    source = stream.place.source
    with source.connect() as one, source.connect() as other:
        for number in range(0, 6, 2):
            for place, session in enumerate((one, other)):
                session.execute("BEGIN")
                session.execute("INSERT INTO orders VALUES (%s)", (number + place,))
            one.execute("COMMIT")
            other.execute("COMMIT")
    assert [stream.load()[0].changes for _ in range(6)] == [1] * 6
    check(stream)


def test_a_batch_that_was_planned_is_landed_again_up_to_its_end(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS, batch_rows=2)
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (1), (2)")
    first = stream.land("a" * 16)
    source.execute("INSERT INTO orders VALUES (3)")
    again = stream.land("b" * 16, upto=first.high, batch_rows=1)
    assert (again.high, again.changes) == (first.high, 2)


def test_other_columns_begin_another_batch(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute(
        "INSERT INTO orders VALUES (1, 'a')",
        "ALTER TABLE orders ADD COLUMN extra int",
        "INSERT INTO orders VALUES (2, 'b', NULL, NULL, 7)",
        "ALTER TABLE orders DROP COLUMN at",
        "BEGIN; INSERT INTO orders VALUES (3, 'c', 1, 8); ALTER TABLE orders ADD COLUMN late text;"
        "INSERT INTO orders VALUES (4, 'd', 1, 9, 'x'); COMMIT",
    )
    names = []
    while True:
        landed, _ = stream.load()
        if landed.high is None:
            break
        names.append(" ".join(column.name for column in landed.columns))
    assert names == ["id name total at", "id name total at extra", "id name total extra late"]
    rows = "id, name, total, extra, late"
    assert stream.target_rows(rows) == stream.source_rows(rows)


def test_a_row_whose_value_is_nowhere_to_be_had_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
    )
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (1, 1, repeat('x', 9000)), (2, 1, 'y')")
    stream.load()
    stream.place.target.execute("DELETE FROM raw.orders WHERE id = 1")
    source.execute("UPDATE orders SET n = 2")
    with pytest.raises(DestinationError, match=r"1 rows for raw.orders .* large values"):
        stream.load()


def test_a_key_outside_the_replica_identity_is_refused_by_name(make_stream: MakeStream) -> None:
    stream = make_stream(
        "CREATE TABLE orders (id int PRIMARY KEY, email text UNIQUE)", key=("email",)
    )
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (1, 'a')", "UPDATE orders SET email = 'b'")
    with pytest.raises(SourceError, match=r"key \(email\) is not part of its replica identity"):
        stream.load()


def test_messages_of_other_kinds_are_passed_over(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute(
        "SELECT pg_replication_origin_create('elsewhere_' || current_database())",
        "SELECT pg_replication_origin_session_setup('elsewhere_' || current_database())",
        "INSERT INTO orders VALUES (1)",
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_logical_emit_message(true, 'p', 'text')",
        "CREATE TYPE mood AS ENUM ('sad'); ALTER TABLE orders ADD COLUMN m mood",
        "INSERT INTO orders VALUES (2)",
    )
    kinds = {chr(data[0]) for _, data in stream.messages()}
    assert kinds >= set("BCRIOY")
    stream.load()
    stream.load()
    check(stream)
    source.execute("SELECT pg_replication_origin_drop('elsewhere_' || current_database())")


def damage(stream: ChangeStream, kind: str, change: Callable[[bytes], bytes]) -> str:
    """Land the stream with its first message of a kind changed; tells the error."""
    lsn = next(lsn for lsn, data in stream.messages() if chr(data[0]) == kind)
    done = False

    def messages() -> Iterator[tuple[str, bytes]]:
        nonlocal done
        for at, data in stream.messages():
            if chr(data[0]) == kind and not done:
                done = True
                data = change(data)
            yield at, data

    with pytest.raises(SourceError) as caught:
        stream.land("a" * 16, messages=messages())
    assert f"slot {stream.slot}: the message at {lsn}" in str(caught.value)
    return str(caught.value)


def test_a_damaged_message_is_named_by_slot_and_position(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    stream.place.source.execute(
        "INSERT INTO orders VALUES (1, 'a')", "UPDATE orders SET id = 2", "DELETE FROM orders"
    )
    for kind in "BRIUDC":
        assert "cannot be understood" in damage(stream, kind, lambda data: data[:-3])
    assert "unknown kind 'S'" in damage(stream, "I", lambda data: b"S" + data[1:])
    assert "not described" in damage(stream, "I", lambda data: b"I\0\0\0\1" + data[5:])
    assert "a row of 259 columns" in damage(stream, "I", lambda data: data[:6] + b"\1\3" + data[8:])
    assert "unknown kind 'b'" in damage(stream, "I", lambda data: data[:8] + b"b" + data[9:])
    assert "bytes, and should have" in damage(stream, "I", lambda data: data + b"x")
    with pytest.raises(SourceError, match="ends within a transaction"):
        stream.land("b" * 16, messages=list(stream.messages())[:-1])


def test_a_table_that_is_not_the_sync_s_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS, "CREATE TABLE others (id int PRIMARY KEY)")
    stream.place.source.execute(
        f'ALTER PUBLICATION "{stream.slot}" ADD TABLE others', "INSERT INTO others VALUES (1)"
    )
    with pytest.raises(SourceError, match=r"tells of public.others, .* table is public.orders"):
        stream.load()
