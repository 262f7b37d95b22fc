"""Batches that carry deletes into Postgres: the common contract, and what is Postgres' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.conftest import Database
from integration.deletes_conformance import DeletesConformance
from integration.destination_conformance import MakeHarness, Row, load
from integration.postgres_harness import PostgresHarness, make_shape, maker
from tidegate.errors import ChecksFailed, DeclarationError, DriftRefused, TargetGone
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Check, Mode, Rules
from tidegate.model.shape import Shape, StagedColumn
from tidegate.spark.session import SparkSessions
from tidegate.spark.transforming import copy_share, stage_frame

SHAPE = make_shape("id integer, name text, c bigint", "id", "c", unique=True, deletes=True)
MODES = [Mode.MERGE, Mode.DELETE_INSERT]


class TestMerge(DeletesConformance):
    """merge keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.MERGE)


class TestDeleteInsert(DeletesConformance):
    """delete_insert keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.DELETE_INSERT)


def versions(harness: PostgresHarness) -> dict[int, str]:
    return dict(harness.database.execute(f"SELECT id, xmin::text FROM {harness.table}"))


def test_merge_leaves_rows_alone_that_came_unchanged_beside_deletes(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE)
    load(harness, (1, "a", 1, False), (2, None, None, False), (3, "c", 1, False))
    before = versions(harness)
    published = load(harness, (1, "a", 1, False), (2, None, None, False), (3, None, None, True))
    assert published.changed == 1
    assert versions(harness) == {1: before[1], 2: before[2]}


def test_an_older_row_beside_deletes_does_not_replace_a_newer(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE)
    load(harness, (1, "newer", 8, False), (2, "b", 8, False))
    assert load(harness, (1, "older", 3, False), (2, None, None, True)).changed == 1
    assert harness.rows() == [(1, "newer", 8)]


@pytest.mark.parametrize("mode", MODES)
def test_a_new_row_may_take_what_only_one_row_can_have_from_a_deleted_one(
    database: Database, mode: Mode
) -> None:
    harness = PostgresHarness(database, SHAPE, Rules(mode=mode))
    database.execute(f"ALTER TABLE {harness.table} ADD UNIQUE (name)")
    load(harness, (1, "captain", 1, False))
    load(harness, (1, None, None, True), (2, "captain", 2, False))
    assert harness.rows() == [(2, "captain", 2)]


def test_the_flag_is_staged_last_and_no_column_of_the_target(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE)
    fence = harness.attempt()
    harness.stage(fence, [(1, "a", 1, True)])
    columns = (
        "SELECT array_agg(attname || ' ' || format_type(atttypid, -1) ORDER BY attnum) FROM"
        " pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attnum > 0 AND relname"
    )
    assert database.value(rf"{columns} LIKE 'stg\_%'") == [
        "id integer", "name text", "c bigint", "is gone boolean"
    ]  # fmt: skip
    target = harness.destination.relation.name
    assert database.value(f"{columns} = '{target}'") == ["id integer", "name text", "c bigint"]
    assert harness.watermark().declaration == {
        "columns": [[name, kind, False] for name, kind in SHAPE.staged[:-1]]
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("newest", [False, True])
def test_what_a_deleted_row_holds_beside_its_key_need_not_fit_the_target(
    database: Database, mode: Mode, newest: bool
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    columns = (
        StagedColumn("id", "text", "integer"),
        StagedColumn("size", "text", "numeric(4,1)", not_null=True),
        StagedColumn("mood", "text", "public.mood"),
        StagedColumn("c", "text", "bigint"),
    )
    harness = PostgresHarness(database, replace(SHAPE, columns=columns), Rules(mode=mode))
    load(harness, ("1", "1.5", "sad", "1", False), ("2", "2.5", "glad", "1", False))
    gone = (("1", "no number", "angry", None, True), ("02", None, "", None, True))
    load(harness, *gone, newest=newest)
    assert harness.rows() == []
    with pytest.raises(DriftRefused, match="angry"):
        load(harness, ("1", "1", "angry", "2", False))


CHECKED = Rules(
    checks=(Check("named", "name IS NOT NULL"), Check("inverse", "100 / c > 1")),
    reject_limit=0.5,
)


def rejected_keys(harness: PostgresHarness) -> list[int]:
    rows = harness.database.execute(f"SELECT key FROM {harness.table}_rejected ORDER BY id")
    return [row[0]["id"] for row in rows]


@pytest.mark.parametrize("mode", MODES)
def test_a_deleted_row_is_never_set_aside(database: Database, mode: Mode) -> None:
    harness = PostgresHarness(database, SHAPE, replace(CHECKED, mode=mode))
    load(harness, (1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False))
    published = load(
        harness,
        *((1, None, None, True), (2, None, 0, True), (3, "c", 2, False), (4, None, 1, False)),
    )
    assert (published.rows, published.changed, published.rejected) == (4, 3, 1)
    assert harness.rows() == [(3, "c", 2)]
    assert rejected_keys(harness) == [4]


def test_a_deleted_row_leaves_the_rejected_ones(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE, CHECKED)
    load(harness, (1, "a", 1, False), (2, None, 1, False))
    assert rejected_keys(harness) == [2]
    load(harness, (2, None, None, True))
    assert rejected_keys(harness) == []
    assert harness.rows() == [(1, "a", 1)]


def test_deletes_do_not_make_room_for_more_rejected_rows(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE, replace(CHECKED, reject_limit=0.1))
    load(harness, *((key, "a", 1, False) for key in range(10)))
    deletes = [(key, None, None, True) for key in range(10)]
    with pytest.raises(ChecksFailed, match="2 of 3 rows"):
        load(harness, *deletes, (10, "x", 1, False), (11, None, 1, False), (12, None, 1, False))
    assert len(harness.rows()) == 10


@pytest.mark.parametrize(
    ("shape", "mode", "problem", "hint"),
    [
        (
            SHAPE,
            Mode.APPEND,
            "mode append keeps every row",
            'use mode = "merge" or "delete_insert"',
        ),
        (replace(SHAPE, key=()), Mode.APPEND, "mode append keeps every row", "only gains rows"),
        (SHAPE, Mode.REPLACE, "mode replace removes whatever", "or the whole without deletes"),
        (replace(SHAPE, key=()), Mode.MERGE, "without a key nobody can tell", "key = …"),
        (replace(SHAPE, deleted="name"), Mode.MERGE, "a column called name", "exclude_columns"),
    ],
)
def test_deletes_are_refused_before_anything_is_made_where_they_have_no_meaning(
    database: Database, shape: Shape, mode: Mode, problem: str, hint: str
) -> None:
    with pytest.raises(DeclarationError, match=problem) as raised:
        PostgresHarness(database, shape, Rules(mode=mode))
    assert hint in str(raised.value)
    assert database.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'raw'") == 0


def test_a_target_that_deletes_have_emptied_takes_the_next_load(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE)
    load(harness, (1, "a", 1, False), high=1)
    load(harness, (1, "a", 1, True), high=2)
    harness.destination.check_present(harness.watermark())
    harness.destination.prepare(SHAPE, harness.watermark(), Rules())
    plain = replace(SHAPE, deleted=None)
    harness.destination.prepare(plain, harness.watermark(), Rules())
    assert [row[0] for row in logged_rows(harness)] == [1, 1]


def logged_rows(harness: PostgresHarness) -> list[Row]:
    return harness.database.execute(
        f"SELECT rows FROM tidegate.watermark_log WHERE table_name = '{harness.table}' ORDER BY id"
    )


def test_a_target_that_somebody_emptied_is_noticed_after_deletes_too(database: Database) -> None:
    harness = PostgresHarness(database, SHAPE)
    load(harness, (1, "a", 1, False), (2, "b", 1, False), high=1)
    database.execute(f"TRUNCATE {harness.table}")
    load(harness, (1, "a", 1, True), high=2)
    with pytest.raises(TargetGone):
        harness.destination.check_present(harness.watermark())


def test_spark_stages_the_flag_of_a_frame(database: Database, warm_spark: SparkSessions) -> None:
    harness = PostgresHarness(database, SHAPE)
    load(harness, (1, "a", 1, False), (2, "b", 1, False))
    fence = harness.attempt()
    rows = [(1, None, None, True), (2, "changed", 2, False), (3, "new", 2, None)]
    frame = warm_spark.get().createDataFrame(rows, "id int, name string, c bigint, gone boolean")
    writes = stage_frame(frame, harness.place(fence), "the changes", copy_share)
    harness.check(fence, writes)
    assert harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "20")).changed == 3
    assert harness.rows() == [(2, "changed", 2), (3, "new", 2)]


CURSORS = st.none() | st.integers(0, 4)
CHANGES = st.tuples(st.none() | st.sampled_from("ab"), CURSORS, st.booleans())
BATCHES = st.lists(st.dictionaries(st.integers(1, 5), CHANGES, max_size=5), max_size=6)


@pytest.mark.parametrize("mode", MODES)
@given(batches=BATCHES)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)
def test_any_batches_leave_what_they_would_leave_in_a_dictionary(
    database: Database, mode: Mode, batches: list[dict[int, tuple[str | None, int | None, bool]]]
) -> None:
    harness = PostgresHarness(database, SHAPE, Rules(mode=mode))
    expected: dict[int, Row] = {}
    for batch in batches:
        changes = 0
        for key, (name, cursor, gone) in batch.items():
            there = expected.get(key)
            if gone:
                changes += expected.pop(key, None) is not None
            elif mode is Mode.DELETE_INSERT or there is None or not_newer(there[2], cursor):
                expected[key] = (key, name, cursor)
                changes += mode is Mode.DELETE_INSERT or there != expected[key]
        rows = [(key, *change) for key, change in batch.items()]
        assert load(harness, *rows).changed == changes
        assert harness.rows() == [expected[key] for key in sorted(expected)]
        harness.destination.check_present(harness.watermark())


def not_newer(there: int | None, cursor: int | None) -> bool:
    return there is None or cursor is None or there <= cursor
