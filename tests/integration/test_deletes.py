"""Batches that carry deletes into Postgres: the common contract, and what is Postgres' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.conftest import Database
from integration.destination_conformance import DeletesConformance
from integration.destination_harness import MakeHarness, Row, load, make_shape
from integration.postgres_harness import PostgresHarness, maker, shared
from tidegate.config.sync import Mode, RowCheck, Rules
from tidegate.core.errors import ChecksFailed, DeclarationError, DriftRefused, TargetGone
from tidegate.core.shape import Shape, StagedColumn

__all__ = ["shared"]

SHAPE = make_shape(deletes=True)
MODES = [Mode.MERGE, Mode.DELETE_INSERT]
CHECKED = Rules(
    checks=(RowCheck("named", "name IS NOT NULL"), RowCheck("inverse", "100 / c > 1")),
    reject_limit=0.5,
)


class TestMerge(DeletesConformance):
    """merge keeps the contract."""

    @pytest.fixture
    def make_harness(self, shared: Database) -> MakeHarness:
        return maker(shared, Mode.MERGE)


class TestDeleteInsert(DeletesConformance):
    """delete_insert keeps the contract."""

    @pytest.fixture
    def make_harness(self, shared: Database) -> MakeHarness:
        return maker(shared, Mode.DELETE_INSERT)


def test_merge_leaves_rows_alone_that_came_unchanged_or_older_beside_deletes(
    shared: Database,
) -> None:
    harness = PostgresHarness(shared, SHAPE)
    rows = [(1, "a", 1, False), (2, None, None, False)]
    load(harness, *rows, (3, "c", 1, False), (4, "newer", 8, False))
    before = harness.versions()
    published = load(harness, *rows, (3, None, None, True), (4, "older", 3, False))
    assert published.changed == 1
    assert harness.versions() == {key: before[key] for key in (1, 2, 4)}
    assert harness.rows() == [(1, "a", 1), (2, None, None), (4, "newer", 8)]


@pytest.mark.parametrize("mode", MODES)
def test_a_new_row_may_take_what_only_one_row_can_have_from_a_deleted_one(
    shared: Database, mode: Mode
) -> None:
    harness = PostgresHarness(shared, SHAPE, Rules(mode=mode))
    shared.execute(f"ALTER TABLE {harness.table} ADD UNIQUE (name)")
    load(harness, (1, "captain", 1, False))
    load(harness, (1, None, None, True), (2, "captain", 2, False))
    assert harness.rows() == [(2, "captain", 2)]


def test_the_flag_is_staged_last_and_no_column_of_the_target(shared: Database) -> None:
    harness = PostgresHarness(shared, SHAPE)
    harness.stage(harness.attempt(), [(1, "a", 1, True)])
    columns = (
        "SELECT array_agg(attname || ' ' || format_type(atttypid, -1) ORDER BY attnum) FROM"
        " pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attnum > 0 AND relname ="
    )
    target = ["id integer", "name text", "c bigint"]
    (staged,) = harness.staged()
    assert shared.value(f"{columns} '{staged}'") == [*target, "is gone boolean"]
    assert shared.value(f"{columns} '{harness.destination.relation.name}'") == target
    assert harness.watermark().declaration == {
        "columns": [[name, kind, False] for name, kind in SHAPE.staged[:-1]]
    }


@pytest.mark.parametrize("mode", MODES)
def test_what_a_deleted_row_holds_beside_its_key_need_not_fit_the_target(
    database: Database, mode: Mode
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    columns = (
        StagedColumn("id", "text", "integer"),
        StagedColumn("size", "text", "numeric(4,1)", not_null=True),
        StagedColumn("mood", "text", "public.mood"),
        StagedColumn("c", "text", "bigint"),
    )
    harness = PostgresHarness(database, replace(SHAPE, columns=columns), Rules(mode=mode))
    for newest in (False, True):
        load(harness, ("1", "1.5", "sad", "1", False), ("2", "2.5", "glad", "1", False))
        gone = (("1", "no number", "angry", None, True), ("02", None, "", None, True))
        load(harness, *gone, newest=newest)
        assert harness.rows() == []
    with pytest.raises(DriftRefused, match="angry"):
        load(harness, ("1", "1", "angry", "2", False))


@pytest.mark.parametrize("mode", MODES)
def test_a_deleted_row_is_never_set_aside_and_leaves_the_rejected_ones(
    shared: Database, mode: Mode
) -> None:
    def rejected_keys() -> list[int]:
        rows = shared.execute(f"SELECT key FROM {harness.table}_rejected ORDER BY id")
        return [row[0]["id"] for row in rows]

    harness = PostgresHarness(shared, SHAPE, replace(CHECKED, mode=mode))
    load(harness, (1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False))
    published = load(
        harness,
        *((1, None, None, True), (2, None, 0, True), (3, "c", 2, False), (4, None, 1, False)),
    )
    assert (published.rows, published.changed, published.rejected) == (4, 3, 1)
    assert (harness.rows(), rejected_keys()) == ([(3, "c", 2)], [4])
    load(harness, (4, None, None, True))
    assert (harness.rows(), rejected_keys()) == ([(3, "c", 2)], [])


def test_deletes_do_not_make_room_for_more_rejected_rows(shared: Database) -> None:
    harness = PostgresHarness(shared, SHAPE, replace(CHECKED, reject_limit=0.1))
    load(harness, *((key, "a", 1, False) for key in range(10)))
    deletes = [(key, None, None, True) for key in range(10)]
    with pytest.raises(ChecksFailed, match="2 of 3 rows"):
        load(harness, *deletes, (10, "x", 1, False), (11, None, 1, False), (12, None, 1, False))
    assert len(harness.rows()) == 10


KEYLESS = replace(SHAPE, key=())
MEANINGLESS: list[tuple[Shape, Mode, str, str]] = [
    (SHAPE, Mode.APPEND, "mode append keeps every row", 'use mode = "merge" or "delete_insert"'),
    (KEYLESS, Mode.APPEND, "mode append keeps every row", "only gains rows"),
    (SHAPE, Mode.REPLACE, "mode replace removes whatever", "or the whole without deletes"),
    (KEYLESS, Mode.MERGE, "without a key nobody can tell", "key = …"),
    (replace(SHAPE, deleted="name"), Mode.MERGE, "a column called name", "exclude_columns"),
]


def test_deletes_are_refused_before_anything_is_made_where_they_have_no_meaning(
    database: Database,
) -> None:
    for shape, mode, problem, hint in MEANINGLESS:
        with pytest.raises(DeclarationError, match=problem) as raised:
            PostgresHarness(database, shape, Rules(mode=mode))
        assert hint in str(raised.value)
    assert database.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'raw'") == 0


def test_a_target_that_deletes_have_emptied_is_not_one_that_somebody_emptied(
    shared: Database,
) -> None:
    harness = PostgresHarness(shared, SHAPE)
    load(harness, (1, "a", 1, False), high=1)
    load(harness, (1, "a", 1, True), high=2)
    harness.destination.check_present(harness.watermark())
    for shape in (SHAPE, replace(SHAPE, deleted=None)):
        harness.destination.prepare(shape, harness.watermark(), Rules())
    log = f"tidegate.watermark_log WHERE table_name = '{harness.table}' ORDER BY id"
    assert shared.execute(f"SELECT rows FROM {log}") == [(1,), (1,)]
    load(harness, (1, "a", 1, False), (2, "b", 1, False), high=3)
    assert harness.watermark().rows_synced == 2
    load(harness, (1, "a", 1, True), high=4)
    assert harness.watermark().rows_synced == 3
    shared.execute(f"TRUNCATE {harness.table}")
    load(harness, (3, "c", 1, True), high=5)
    with pytest.raises(TargetGone):
        harness.destination.check_present(harness.watermark())


CURSORS = st.none() | st.integers(0, 4)
CHANGES = st.tuples(st.none() | st.sampled_from("ab"), CURSORS, st.booleans())
BATCHES = st.lists(st.dictionaries(st.integers(1, 5), CHANGES, max_size=5), max_size=6)


@pytest.mark.parametrize(
    "mode", [Mode.MERGE, pytest.param(Mode.DELETE_INSERT, marks=pytest.mark.chaos)]
)
@given(batches=BATCHES)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)
def test_any_batches_leave_what_they_would_leave_in_a_dictionary(
    shared: Database, mode: Mode, batches: list[dict[int, tuple[str | None, int | None, bool]]]
) -> None:
    harness = PostgresHarness(shared, SHAPE, Rules(mode=mode))
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
