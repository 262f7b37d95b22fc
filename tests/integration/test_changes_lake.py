"""Changes of a real slot into a lake, and through transformations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from databases import Databases
from integration.change_stream import ChangeStream, Streams, shared_streams
from projects import EMBEDDED_LAKE
from tidegate.core.errors import DestinationError
from tidegate.core.relation import Endpoint, Relation
from tidegate.load.sources.cdc.landing import Chunks
from tidegate.spark.session import SparkSessions

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, n smallint, body text, total numeric(8,2),"
    " at timestamptz)",
    "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
)
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"
FILL = (
    "INSERT INTO orders SELECT n, n, repeat('b' || n, 9000), n / 4.0, '2026-01-01'::timestamptz"
    " + n * '1h'::interval FROM generate_series(1, 9) n"
)
LARGE_CHUNK = pytest.param(100, marks=pytest.mark.chaos)


@pytest.fixture(scope="module")
def make_stream(
    kept_databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
    warm_spark: SparkSessions,
) -> Iterator[Streams]:
    """Streams that have one lake."""
    folder = tmp_path_factory.mktemp("changes_lake")
    with shared_streams(kept_databases, folder, warm_spark, lake=EMBEDDED_LAKE) as streams:
        yield streams


def source_rows(stream: ChangeStream) -> list[dict[str, Any]]:
    with stream.place.source.connect() as connection:
        cursor = connection.execute("SELECT * FROM orders ORDER BY id")
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.mark.parametrize("chunk_rows", [2, LARGE_CHUNK])
def test_changes_arrive_in_a_lake(make_stream: Streams, chunk_rows: int) -> None:
    stream = make_stream(*ORDERS, connection="lake", chunks=Chunks(rows=chunk_rows))
    source = stream.place.source
    source.execute(FILL)
    stream.load()
    assert stream.lake_rows() == source_rows(stream)

    # A table that does not have the large value is no place for a row without it.
    source.execute("UPDATE orders SET n = 100 WHERE id = 1")
    target, stream.target = stream.target, Endpoint("lake", Relation("raw", "others"))
    with pytest.raises(DestinationError, match=r"1 rows for raw\.others .* large values"):
        stream.load()
    stream.target = target

    source.execute(
        "UPDATE orders SET n = 101 WHERE id = 1",
        "UPDATE orders SET body = repeat('x', 9000) WHERE id = 2",
        "UPDATE orders SET n = 102 WHERE id = 2",
        "UPDATE orders SET id = 60 WHERE id = 3",
        "UPDATE orders SET n = 7 WHERE id = 60",
        "BEGIN; UPDATE orders SET id = -4 WHERE id = 4; UPDATE orders SET id = 4 WHERE id = 5;"
        "UPDATE orders SET id = 5 WHERE id = -4; COMMIT",
        "DELETE FROM orders WHERE id = 6",
        "INSERT INTO orders VALUES (70, 1, 'short', NULL, NULL)",
    )
    landed, _ = stream.load()
    assert landed.unfilled
    assert stream.lake_rows() == source_rows(stream)
    source.execute("TRUNCATE orders; INSERT INTO orders VALUES (1, 1, 'new'), (2, 1, 'gone')")
    source.execute("DELETE FROM orders WHERE id = 2")
    landed, _ = stream.load()
    assert landed.truncated
    assert stream.lake_rows() == source_rows(stream)


@pytest.mark.parametrize("chunk_rows", [1, LARGE_CHUNK])
def test_soft_deletes_and_truncates_mark_the_rows_of_a_lake(
    make_stream: Streams, chunk_rows: int
) -> None:
    stream = make_stream(*ORDERS, connection="lake", soft=True, chunks=Chunks(rows=chunk_rows))
    source = stream.place.source
    source.execute(FILL)
    stream.load()
    kept = {row["id"]: row for row in source_rows(stream)}
    source.execute(
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET n = 100 WHERE id = 2",
        "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (3, 1, 'after'); COMMIT",
    )
    landed, _ = stream.load()
    rows = {row["id"]: row for row in stream.lake_rows()}
    before = rows[1].pop("deleted_at")
    assert before < landed.committed_at
    assert rows[1] == kept[1]
    assert rows[2] == {**kept[2], "n": 100, "deleted_at": landed.committed_at}
    assert (rows[3]["body"], rows[3]["deleted_at"]) == ("after", None)
    assert rows[9] == {**kept[9], "deleted_at": landed.committed_at}
    assert len(rows) == 9


def test_what_was_landed_for_a_lake_is_discarded_and_swept(make_stream: Streams) -> None:
    stream = make_stream(*ORDERS, connection="lake")
    stream.place.source.execute(FILL)
    destination = stream.project.context.destination(stream.target)
    destination.sweep(set)
    for attempt_id in ("a" * 16, "b" * 16, "c" * 16):
        stream.land(attempt_id)
    find = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{destination.ledger.schema}'"
    find += " AND tablename LIKE 'stg%'"
    assert stream.place.control.value(find) == 3
    assert destination.discard("a" * 16) == 1
    assert destination.sweep(lambda: {"c" * 16}) == 1
    assert stream.place.control.value(find) == 1


@pytest.mark.parametrize("connection", ["warehouse", pytest.param("lake", marks=pytest.mark.chaos)])
def test_a_transformation_sees_the_rows_and_deletes_go_by_key(
    make_stream: Streams, connection: str
) -> None:
    stream = make_stream(
        *ORDERS,
        FULL,
        connection=connection,
        transform=lambda df: df.selectExpr("id", "n * 2 AS twice", "left(body, 2) AS start"),
        chunks=Chunks(rows=3),
    )
    source = stream.place.source
    source.execute(FILL)
    stream.load()
    source.execute(
        "UPDATE orders SET n = 50 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET id = 30 WHERE id = 3",
    )
    stream.load()
    expected = [
        {"id": row["id"], "twice": row["n"] * 2, "start": row["body"][:2]}
        for row in source_rows(stream)
    ]
    if connection == "lake":
        assert stream.lake_rows() == expected
        return
    found = stream.place.target.execute(
        f"SELECT id, twice, start FROM {stream.target.relation} ORDER BY id"
    )
    assert [dict(zip(("id", "twice", "start"), row, strict=True)) for row in found] == expected


@pytest.mark.chaos
def test_with_soft_deletes_a_transformation_sees_the_marked_rows(make_stream: Streams) -> None:
    stream = make_stream(
        *ORDERS,
        FULL,
        soft=True,
        transform=lambda df: df.selectExpr("id", "n * 2 AS twice", "deleted_at"),
    )
    source, target = stream.place.source, stream.place.target
    source.execute(FILL)
    stream.load()
    source.execute("DELETE FROM orders WHERE id = 1")
    first, _ = stream.load()
    source.execute("TRUNCATE orders; INSERT INTO orders VALUES (3, 1, 'after')")
    second, _ = stream.load()
    rows = target.execute(f"SELECT id, twice, deleted_at FROM {stream.target.relation} ORDER BY id")
    assert rows[:4] == [
        (1, 2, first.committed_at),
        (2, 4, second.committed_at),
        (3, 2, None),
        (4, 8, second.committed_at),
    ]
    assert len(rows) == 9
