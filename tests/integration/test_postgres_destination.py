"""The Postgres destination: the common contract, and what only Postgres has."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from integration.conftest import Database
from integration.destination_conformance import MakeHarness, MergeConformance, load
from integration.postgres_harness import PostgresHarness, make_shape, maker
from tidegate.errors import DestinationError, FenceLost, LoadError, TargetGone
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Mode, Rules
from tidegate.model.shape import Shape, StagedColumn


@pytest.fixture
def make_harness(database: Database) -> MakeHarness:
    return maker(database, Mode.MERGE)


class TestMerge(MergeConformance):
    """The contract that all destinations share."""


@pytest.fixture
def harness(database: Database) -> PostgresHarness:
    shape = make_shape("id integer, name text, c bigint", "id", "c", unique=True)
    return PostgresHarness(database, shape)


def versions(harness: PostgresHarness) -> dict[int, str]:
    return dict(harness.database.execute(f"SELECT id, xmin::text FROM {harness.table}"))


def test_unchanged_rows_are_not_written_again(harness: PostgresHarness) -> None:
    load(harness, (1, "a", 1), (2, None, None), (3, "c", 1))
    before = versions(harness)
    load(harness, (1, "a", 1), (2, None, None), (3, "c", 2), (4, "d", 2))
    after = versions(harness)
    assert {key for key in before if before[key] != after[key]} == {3}


def test_a_full_batch_leaves_unchanged_rows_alone_too(harness: PostgresHarness) -> None:
    load(harness, (1, "a", 1), (2, "b", 1), (3, "c", 1))
    before = versions(harness)
    load(harness, (1, "a", 1), (3, "changed", 1), kind=BatchKind.FULL)
    assert versions(harness)[1] == before[1]
    assert set(versions(harness)) == {1, 3}


def test_the_target_is_made_with_types_keys_and_not_null(database: Database) -> None:
    shape = Shape(
        (
            StagedColumn("id", "integer", "integer"),
            StagedColumn("At All", "text", "numeric(10,2)", not_null=True),
            StagedColumn("c", "timestamp(3) with time zone", "timestamp(3) with time zone"),
        ),
        ("id",),
        "c",
        key_is_unique=True,
    )
    harness = PostgresHarness(database, shape)
    columns = database.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        f" WHERE attrelid = '{harness.table}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns == [
        ("id", "integer", True),
        ("At All", "numeric(10,2)", True),
        ("c", "timestamp(3) with time zone", False),
    ]
    key = database.value(
        f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p'"
        f" AND conrelid = '{harness.table}'::regclass"
    )
    assert key == "PRIMARY KEY (id)"
    harness.destination.prepare(shape, harness.watermark(), Rules())


def test_staging_is_unlogged_and_named_for_its_attempt(harness: PostgresHarness) -> None:
    fence = harness.attempt()
    harness.stage(fence, [(1, "a", 1)])
    (row,) = harness.database.execute(
        "SELECT relname, relpersistence FROM pg_class WHERE relname LIKE 'stg\\_%'"
    )
    assert row[1] == "u"
    assert harness.destination.control_id.hex[:12] in row[0]
    assert fence.attempt_id[:16] in row[0]


def remake(harness: PostgresHarness, columns: str) -> None:
    harness.database.execute(
        f"DROP TABLE {harness.table}", f"CREATE TABLE {harness.table} ({columns})"
    )


def test_a_target_of_wider_types_takes_the_rows_again_and_again(harness: PostgresHarness) -> None:
    remake(harness, "id bigint PRIMARY KEY, name varchar, c numeric, extra text DEFAULT 'x'")
    harness.destination.prepare(harness.shape, harness.watermark(), Rules())
    load(harness, (1, "a", 1), (2, "b", 1))
    before = versions(harness)
    assert load(harness, (1, "a", 1), (2, "changed", 2)).changed == 1
    assert [row[:2] for row in harness.rows()] == [(1, "a"), (2, "changed")]
    assert versions(harness)[1] == before[1]


def test_text_that_is_too_long_for_the_target_is_refused_never_cut(database: Database) -> None:
    column = StagedColumn("name", "text", "character varying(3)")
    shape = make_shape("id integer, name text, c bigint", "id", "c", unique=True)
    shape = replace(shape, columns=(shape.columns[0], column, shape.columns[2]))
    harness = PostgresHarness(database, shape)
    load(harness, (1, "abc", 1))
    with pytest.raises(LoadError, match="value too long for type character varying"):
        load(harness, (2, "abcd", 2))
    assert harness.rows() == [(1, "abc", 1)]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id int PRIMARY KEY, c bigint", 'it has no column name: ALTER TABLE .* ADD COLUMN "name"'),
        (
            "id smallint PRIMARY KEY, name text, c bigint",
            "its column id is smallint, the rows have",
        ),
        (
            "id int PRIMARY KEY, name varchar(9), c bigint",
            r"its column name is character varying\(",
        ),
        ("id int PRIMARY KEY, name text, c float8", "its column c is double precision, the rows"),
        ("id int PRIMARY KEY, name text, c date", "its column c is date, the rows have bigint"),
        (
            "id int, name text, c bigint",
            r"it has no unique index on \(id\): ALTER TABLE .* ADD UNI",
        ),
        ("id int PRIMARY KEY, name text, c bigint, d int NOT NULL", "its column d is NOT NULL and"),
        (
            "id int PRIMARY KEY, name text, c bigint GENERATED ALWAYS AS (1) STORED",
            "c is generated",
        ),
    ],
)
def test_a_target_that_cannot_take_the_rows_is_refused_by_column(
    harness: PostgresHarness, columns: str, problem: str
) -> None:
    remake(harness, columns)
    with pytest.raises(DestinationError, match=problem) as raised:
        harness.destination.prepare(harness.shape, harness.watermark(), Rules())
    assert "change the table, or choose another target" in str(raised.value)


def test_all_that_stands_in_the_way_is_said_at_once(harness: PostgresHarness) -> None:
    remake(harness, "id text, d int NOT NULL")
    with pytest.raises(DestinationError) as raised:
        harness.destination.prepare(harness.shape, harness.watermark(), Rules())
    for part in ("column id is text", "no column name", "no column c", "column d", "unique index"):
        assert part in str(raised.value)


@pytest.mark.parametrize("kind", ["VIEW {} AS SELECT 1 AS id", "SEQUENCE {}"])
def test_a_target_that_is_no_table_is_refused(harness: PostgresHarness, kind: str) -> None:
    harness.database.execute(f"DROP TABLE {harness.table}", f"CREATE {kind}".format(harness.table))
    with pytest.raises(DestinationError, match="is not a table"):
        harness.destination.prepare(harness.shape, harness.watermark(), Rules())


@pytest.mark.parametrize("harm", ["DROP TABLE {}", "TRUNCATE {}", "DELETE FROM {}"])
def test_a_target_that_lost_its_rows_is_noticed(harness: PostgresHarness, harm: str) -> None:
    load(harness, (1, "a", 1), high=1)
    harness.database.execute(harm.format(harness.table))
    for look in (
        harness.destination.check_present,
        lambda watermark: harness.destination.prepare(harness.shape, watermark, Rules()),
    ):
        with pytest.raises(TargetGone, match=r"1 rows are recorded in it up to 1") as raised:
            look(harness.watermark())
        assert "tidegate run orders --full-refresh" in str(raised.value)
        assert "tidegate watermark rewind orders" in str(raised.value)


def test_a_target_lost_in_the_middle_of_its_first_tie_is_noticed(harness: PostgresHarness) -> None:
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "a", 5)])
    harness.publish(fence, writes, Batch(BatchKind.TIE, None, "5", None, ("1",)))
    assert harness.watermark().value is None
    harness.database.execute(f"TRUNCATE {harness.table}")
    with pytest.raises(TargetGone):
        harness.destination.check_present(harness.watermark())


def test_a_publish_that_waits_for_a_lock_gives_up_in_time(database: Database) -> None:
    shape = make_shape("id integer, name text, c bigint", "id", "c", unique=True)
    harness = PostgresHarness(database, shape, lock_timeout_seconds=0.2)
    load(harness, (1, "a", 1))
    fence = harness.attempt()
    writes = harness.stage(fence, [(2, "b", 2)])
    with database.connect() as reader:
        reader.execute("BEGIN")
        reader.execute(f"LOCK TABLE {harness.table}")  # type: ignore[arg-type]
        with pytest.raises(DestinationError, match="another session holds a lock"):
            harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "20"))
    assert harness.rows() == [(1, "a", 1)]
    assert len(harness.markers()) == 1


def test_a_publish_that_takes_too_long_is_stopped(database: Database) -> None:
    shape = make_shape("id integer, name text, c bigint", "id", "c", unique=True)
    harness = PostgresHarness(database, shape, publish_timeout_seconds=0.2)
    database.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END'",
        f"CREATE TRIGGER slow BEFORE INSERT ON {harness.table} EXECUTE FUNCTION slow()",
    )
    with pytest.raises(DestinationError, match="statement timeout") as raised:
        load(harness, (1, "a", 1))
    assert "worker.publish_timeout" in str(raised.value)
    assert harness.markers() == []


def test_readers_are_not_blocked_by_a_load(harness: PostgresHarness) -> None:
    load(harness, (1, "a", 1))
    with psycopg.connect(harness.database.conninfo) as reader:
        assert len(reader.execute(f"SELECT * FROM {harness.table}").fetchall()) == 1  # type: ignore[arg-type]
        load(harness, (1, "changed", 2), (2, "b", 2))
        load(harness, (2, "b", 2), kind=BatchKind.FULL)


def test_a_session_ended_in_the_middle_of_a_publish_is_published_once(
    harness: PostgresHarness,
) -> None:
    """The connection is lost inside the transaction; publish finds out and does it again."""
    harness.database.execute(
        "CREATE SEQUENCE once",
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN"
        " IF nextval(''once'') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN NEW; END'",
        f"CREATE TRIGGER die BEFORE INSERT ON {harness.table} EXECUTE FUNCTION die()",
    )
    published = load(harness, (1, "a", 1), update_id="u")
    assert (published.rows, published.already) == (1, False)
    assert harness.rows() == [(1, "a", 1)]
    assert harness.markers() == ["u"]
    assert harness.watermark().version == 1


def test_a_commit_that_is_refused_leaves_no_row_no_marker_and_no_move(
    harness: PostgresHarness,
) -> None:
    load(harness, (1, "a", 1), high=1, update_id="u1")
    harness.database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE check_violation; END'",
        f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {harness.table} DEFERRABLE INITIALLY"
        " DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with pytest.raises(LoadError, match="publishing into"):
        load(harness, (2, "b", 2), high=2, update_id="u2")
    assert harness.rows() == [(1, "a", 1)]
    assert harness.markers() == ["u1"]
    assert harness.watermark().version == 1


def test_a_fence_raised_between_tries_stops_the_second(harness: PostgresHarness) -> None:
    load(harness, (1, "a", 1))
    zombie = harness.attempt()
    writes = harness.stage(zombie, [(2, "b", 2)])
    planned = harness.watermark()
    newer = harness.attempt()
    again = harness.stage(newer, [(2, "b", 2)])
    batch = Batch(BatchKind.RANGE, None, "20")
    harness.publish(newer, again, batch, update_id="u", watermark=planned)
    with pytest.raises(FenceLost):
        harness.publish(zombie, writes, batch, update_id="u", watermark=planned)
    assert len(harness.markers()) == 2
