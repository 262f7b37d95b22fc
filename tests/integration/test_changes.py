"""Changes of a real slot: decoded, folded, landed, staged and published into Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from databases import Databases
from integration.change_stream import ChangeStream, Streams, shared_streams
from tidegate.core.errors import DestinationError, SourceError
from tidegate.core.relation import Relation
from tidegate.load.sources.cdc.landing import Chunks

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, name text, total numeric(10,2), at timestamptz)"
LARGE = (
    "CREATE TABLE orders (id int PRIMARY KEY, n int, body text, more text)",
    "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL",
)
LARGE_ROWS = (
    "INSERT INTO orders SELECT n, n, repeat(n::text, 9000), repeat('m' || n, 9000)"
    " FROM generate_series(1, 8) n"
)


@pytest.fixture(scope="module")
def make_stream(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Streams]:
    with shared_streams(kept_databases, tmp_path_factory.mktemp("changes")) as streams:
        yield streams


def check(stream: ChangeStream, columns: str = "*") -> None:
    assert stream.target_rows(columns) == stream.source_rows(columns)


def test_inserts_updates_deletes_and_changed_keys_arrive(make_stream: Streams) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute("INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, 50) n")
    landed, published = stream.load()
    assert landed.changes == 50
    assert published is not None
    assert published.changed == 50
    source.execute(
        "UPDATE orders SET name = NULL, total = 'NaN' WHERE id < 20",
        "DELETE FROM orders WHERE id BETWEEN 10 AND 30",
        # a swap, a chain, and a place that is taken again
        "BEGIN; UPDATE orders SET id = -1 WHERE id = 1; UPDATE orders SET id = 1 WHERE id = 2;"
        "UPDATE orders SET id = 2 WHERE id = -1; COMMIT",
        "BEGIN; UPDATE orders SET id = 133 WHERE id = 3; UPDATE orders SET id = 333 WHERE id = 133;"
        "UPDATE orders SET id = 3333 WHERE id = 333; COMMIT",
        "UPDATE orders SET id = 144 WHERE id = 4; INSERT INTO orders VALUES (4, 'new')",
        "UPDATE orders SET id = 155 WHERE id = 5; DELETE FROM orders WHERE id = 155",
    )
    landed, _ = stream.load()
    assert (landed.more, landed.truncated) == (False, False)
    check(stream)
    assert stream.load()[0].high is None


@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_large_values_that_were_not_sent_stay_what_they_were(
    make_stream: Streams, chunk_rows: int
) -> None:
    stream = make_stream(*LARGE, chunks=Chunks(rows=chunk_rows))
    source = stream.place.source
    source.execute(LARGE_ROWS)
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


def test_a_row_whose_value_is_nowhere_to_be_had_is_refused(make_stream: Streams) -> None:
    stream = make_stream(*LARGE)
    stream.place.source.execute(LARGE_ROWS)
    stream.load()
    stream.place.target.execute(f"DELETE FROM {stream.target.relation} WHERE id = 1")
    stream.place.source.execute("UPDATE orders SET n = 2")
    with pytest.raises(DestinationError, match=r"1 rows for raw.orders_.* large values"):
        stream.load()


@dataclass(frozen=True, slots=True)
class Scene:
    """A table, the rows it begins with, and what is changed then."""

    table: tuple[str, ...]
    fill: str
    changes: tuple[str, ...]
    columns: str = "*"
    names: tuple[str, ...] | None = None
    unfilled: bool | None = False
    options: dict[str, Any] = field(default_factory=dict)


NUMERIC = Scene(
    ("CREATE TABLE orders (id numeric PRIMARY KEY, n int)",),
    "INSERT INTO orders VALUES (1.0, 1), (2.0, 1)",
    (
        "UPDATE orders SET id = 1.00, n = 2 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (2.000, 5)",
    ),
    columns="trim_scale(id) AS id, n",
    unfilled=None,
    options={"soft": True},
)
ODD = '"My Schema"."or""ders %s {}"'
SCENES = {
    "a full replica identity sends all values": Scene(
        (*LARGE, "ALTER TABLE orders REPLICA IDENTITY FULL"),
        LARGE_ROWS,
        (
            "UPDATE orders SET n = 0 WHERE id = 1",
            "UPDATE orders SET id = 20 WHERE id = 2",
            "DELETE FROM orders WHERE id = 3",
        ),
    ),
    "a replica identity by index is as good as a primary key": Scene(
        (
            "CREATE TABLE orders (a int NOT NULL, b text NOT NULL, c text, UNIQUE (b, a))",
            "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_b_a_key",
        ),
        "INSERT INTO orders SELECT n, 'k' || n % 3, 'c' FROM generate_series(1, 20) n",
        (
            "UPDATE orders SET b = 'other' WHERE a < 4",
            "UPDATE orders SET c = 'changed' WHERE a > 15",
            "DELETE FROM orders WHERE a = 10",
        ),
        options={"key": ("a", "b")},
    ),
    "a toasted key is taken from the old row": Scene(
        (
            "CREATE TABLE orders (id text PRIMARY KEY, n int)",
            "ALTER TABLE orders ALTER id SET STORAGE EXTERNAL",
        ),
        "INSERT INTO orders VALUES (repeat('k', 2500), 1), ('short', 1)",
        ("UPDATE orders SET n = 2", "UPDATE orders SET n = 3 WHERE id <> 'short'"),
    ),
    "equal keys with different texts are one row": NUMERIC,
    "equal keys with different texts in chunks": Scene(
        NUMERIC.table, NUMERIC.fill, NUMERIC.changes, options={"chunks": Chunks(rows=1)}
    ),
    "odd names are quoted wherever they go": Scene(
        (
            'CREATE SCHEMA "My Schema"',
            f'CREATE TABLE {ODD} ("the Id" int PRIMARY KEY, "a ""b""" text, "%d" text,'
            ' "select" text, "ü" text)',
            f'ALTER TABLE {ODD} ALTER "%d" SET STORAGE EXTERNAL',
        ),
        f"INSERT INTO {ODD} VALUES (1, 'a', repeat('x', 9000), 'c', 'd')",
        (f"UPDATE {ODD} SET \"ü\" = 'e'",),
        unfilled=True,
        options={"relation": Relation("My Schema", 'or"ders %s {}'), "key": ("the Id",)},
    ),
    "dropped and generated columns are left out": Scene(
        (
            "CREATE TABLE orders (gone text, id int PRIMARY KEY, n int,"
            " double int GENERATED ALWAYS AS (n * 2) STORED, last text)",
            "ALTER TABLE orders DROP COLUMN gone",
        ),
        "INSERT INTO orders (id, n, last) VALUES (1, 2, 'x')",
        ("UPDATE orders SET n = 3",),
        columns="id, n, last",
        names=("id", "n", "last"),
    ),
    "columns that are not wanted never leave the source": Scene(
        ("CREATE TABLE orders (secret text, n int, id int PRIMARY KEY, name text)",),
        "INSERT INTO orders SELECT 'secret', n, n, 'a' FROM generate_series(1, 3) n",
        ("UPDATE orders SET name = 'b', id = 20 WHERE id = 2; DELETE FROM orders WHERE id = 3",),
        columns="id, name",
        names=("id", "name"),
        options={"columns": ("id", "name")},
    ),
    "partitions arrive as the table that they are part of": Scene(
        (
            "CREATE TABLE orders (id int, region text, n int, PRIMARY KEY (id, region))"
            " PARTITION BY LIST (region)",
            "CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a')",
            # the same columns in another order
            "CREATE TABLE orders_b (n int, region text NOT NULL, id int NOT NULL,"
            " PRIMARY KEY (id, region))",
            "ALTER TABLE orders ATTACH PARTITION orders_b FOR VALUES IN ('b')",
        ),
        "INSERT INTO orders SELECT n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, n"
        " FROM generate_series(1, 10) n",
        (
            "UPDATE orders SET region = 'b' WHERE id = 2",
            "UPDATE orders SET n = 100 WHERE id = 3",
            "DELETE FROM orders WHERE id = 4",
        ),
        options={"key": ("id", "region")},
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_tables_of_every_make(make_stream: Streams, name: str) -> None:
    scene = SCENES[name]
    stream = make_stream(*scene.table, **scene.options)
    stream.place.source.execute(scene.fill)
    stream.load()
    stream.place.source.execute(*scene.changes)
    landed, _ = stream.load()
    assert scene.unfilled in (None, bool(landed.unfilled))
    if scene.names is not None:
        assert tuple(column.name for column in landed.columns) == scene.names
    check(stream, scene.columns)


def test_every_type_comes_through_its_text(make_stream: Streams) -> None:
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
    check(stream, ", ".join(f"{name}::text" for name in (*names, "rg", "net", "bits")))


def test_a_batch_that_was_planned_is_landed_again_up_to_its_end(make_stream: Streams) -> None:
    stream = make_stream(ORDERS, batch_rows=2)
    source = stream.place.source
    source.execute("INSERT INTO orders VALUES (1), (2)")
    first = stream.land("a" * 16)
    source.execute("INSERT INTO orders VALUES (3)")
    again = stream.land("b" * 16, upto=first.high, batch_rows=1)
    assert (again.high, again.changes) == (first.high, 2)


def test_a_transaction_that_commits_right_behind_another_is_in_the_next_batch(
    make_stream: Streams,
) -> None:
    """Nothing is written between their commits: the one begins where the other ends."""
    stream = make_stream(ORDERS, batch_rows=1)
    source = stream.place.source
    with source.connect() as one, source.connect() as other:
        for number in range(0, 4, 2):
            for place, session in enumerate((one, other)):
                session.execute("BEGIN")
                session.execute("INSERT INTO orders VALUES (%s)", (number + place,))
            one.execute("COMMIT")
            other.execute("COMMIT")
    assert [stream.load()[0].changes for _ in range(4)] == [1] * 4
    check(stream)


def test_other_columns_begin_another_batch(make_stream: Streams) -> None:
    stream = make_stream(ORDERS)
    stream.place.source.execute(
        "INSERT INTO orders VALUES (1, 'a')",
        "ALTER TABLE orders ADD COLUMN extra int",
        "INSERT INTO orders VALUES (2, 'b', NULL, NULL, 7)",
        "ALTER TABLE orders DROP COLUMN at",
        "BEGIN; INSERT INTO orders VALUES (3, 'c', 1, 8); ALTER TABLE orders ADD COLUMN late text;"
        "INSERT INTO orders VALUES (4, 'd', 1, 9, 'x'); COMMIT",
    )
    names = []
    while (landed := stream.load()[0]).high is not None:
        names.append(" ".join(column.name for column in landed.columns))
    assert names == ["id name total at", "id name total at extra", "id name total extra late"]
    check(stream, "id, name, total, extra, late")


def test_messages_of_other_kinds_are_passed_over(make_stream: Streams) -> None:
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
    assert {chr(data[0]) for _, data in stream.messages()} >= set("BCRIOY")
    stream.load()
    stream.load()
    check(stream)
    source.execute("SELECT pg_replication_origin_drop('elsewhere_' || current_database())")


def damage(stream: ChangeStream, kind: str, change: Callable[[bytes], bytes]) -> str:
    """Land the stream with its first message of a kind changed; tells the error."""
    messages = list(stream.messages())
    first = next(at for at, (_, data) in enumerate(messages) if chr(data[0]) == kind)
    lsn, data = messages[first]
    messages[first] = (lsn, change(data))
    with pytest.raises(SourceError) as caught:
        stream.land("a" * 16, messages=messages)
    assert f"slot {stream.slot}: the message at {lsn}" in str(caught.value)
    return str(caught.value)


def test_what_is_not_understood_is_refused_by_name(make_stream: Streams) -> None:
    stream = make_stream(ORDERS, "CREATE TABLE others (id int PRIMARY KEY)")
    source = stream.place.source
    source.execute(
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

    source.execute(
        f'ALTER PUBLICATION "{stream.slot}" ADD TABLE others', "INSERT INTO others VALUES (1)"
    )
    with pytest.raises(SourceError, match=r"tells of public.others, .* table is public.orders"):
        stream.land("c" * 16)

    stream = make_stream(
        "CREATE TABLE orders (id int PRIMARY KEY, email text UNIQUE)", key=("email",)
    )
    source.execute("INSERT INTO orders VALUES (1, 'a')", "UPDATE orders SET email = 'b'")
    with pytest.raises(SourceError, match=r"key \(email\) is not part of its replica identity"):
        stream.load()
