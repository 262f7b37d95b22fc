"""The modes beside merge: the common contract, and what each does with its rows."""

from __future__ import annotations

import pytest

from integration.conftest import Database
from integration.destination_conformance import (
    DestinationConformance,
    MakeHarness,
    MergeConformance,
    load,
)
from integration.postgres_harness import PostgresHarness, make_shape, maker
from tidegate.destinations.drop import drop_target
from tidegate.errors import ChecksFailed, DeclarationError, DestinationError, LoadError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Check, Mode, Rules

COLUMNS = "id integer, name text, c bigint"


def made(database: Database, mode: Mode, *, keyless: bool = False) -> PostgresHarness:
    harness = maker(database, mode, keyless=keyless)()
    assert isinstance(harness, PostgresHarness)
    return harness


def with_rules(database: Database, rules: Rules, *, key: str = "id") -> PostgresHarness:
    return PostgresHarness(database, make_shape(COLUMNS, key, "c", unique=bool(key)), rules)


class TestDeleteInsert(DestinationConformance):
    """delete_insert keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.DELETE_INSERT)


class TestPlainAppend(DestinationConformance):
    """append without a key keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.APPEND, keyless=True)


class TestVersions(DestinationConformance):
    """append with a key keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.APPEND)


class TestReplaceWithAKey(MergeConformance):
    """replace with a key keeps the contract, and touches only what differs."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.REPLACE)


class TestReplaceWithoutAKey(DestinationConformance):
    """replace without a key keeps the contract."""

    @pytest.fixture
    def make_harness(self, database: Database) -> MakeHarness:
        return maker(database, Mode.REPLACE, keyless=True)


def test_delete_insert_writes_every_row_of_the_batch_anew(database: Database) -> None:
    harness = made(database, Mode.DELETE_INSERT)
    load(harness, (1, "a", 1), (2, "b", 1))
    before = dict(database.execute(f"SELECT id, xmin::text FROM {harness.table}"))
    published = load(harness, (1, "a", 1), (3, "new", 2))
    after = dict(database.execute(f"SELECT id, xmin::text FROM {harness.table}"))
    assert harness.rows() == [(1, "a", 1), (2, "b", 1), (3, "new", 2)]
    assert published.changed == 2
    assert before[1] != after[1]
    assert before[2] == after[2]


def test_delete_insert_of_everything_removes_the_rest(database: Database) -> None:
    harness = made(database, Mode.DELETE_INSERT)
    load(harness, (1, "a", 1), (2, "gone", 1))
    load(harness, (1, "again", 1), kind=BatchKind.FULL)
    assert harness.rows() == [(1, "again", 1)]


def test_delete_insert_needs_no_unique_index(database: Database) -> None:
    harness = made(database, Mode.DELETE_INSERT)
    database.execute(f"ALTER TABLE {harness.table} DROP CONSTRAINT {harness.table[4:]}_pkey")
    load(harness, (1, "a", 1))
    load(harness, (1, "b", 2))
    assert harness.rows() == [(1, "b", 2)]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
@pytest.mark.parametrize("mode", [Mode.DELETE_INSERT, Mode.REPLACE])
def test_a_cascading_foreign_key_is_refused_where_rows_are_deleted_to_come_back(
    database: Database, mode: Mode, action: str
) -> None:
    harness = made(database, mode, keyless=mode is Mode.REPLACE)
    if mode is Mode.REPLACE:
        database.execute(f"ALTER TABLE {harness.table} ADD UNIQUE (id)")
    database.execute(
        f'CREATE TABLE "Line Items" (id integer REFERENCES {harness.table} (id) ON DELETE {action})'
    )
    with pytest.raises(
        DestinationError, match=r'of public\."Line Items" would take its rows along'
    ):
        harness.destination.prepare(harness.shape, harness.watermark(), harness.rules)


def test_merge_and_replace_with_a_key_live_with_a_cascading_foreign_key(
    database: Database,
) -> None:
    for mode in (Mode.MERGE, Mode.REPLACE):
        harness = made(database, mode)
        database.execute(
            f"CREATE TABLE lines_{mode} (id integer REFERENCES {harness.table} ON DELETE CASCADE)"
        )
        load(harness, (1, "a", 1), (2, "b", 1), kind=BatchKind.FULL)
        database.execute(f"INSERT INTO lines_{mode} VALUES (1)")
        load(harness, (1, "changed", 2), (2, "b", 1), kind=BatchKind.FULL)
        assert database.value(f"SELECT count(*) FROM lines_{mode}") == 1


def test_plain_append_adds_every_row(database: Database) -> None:
    harness = made(database, Mode.APPEND, keyless=True)
    load(harness, (1, "a", 1), (1, "a", 1))
    published = load(harness, (1, "b", 2))
    assert published.changed == 1
    assert harness.rows() == [(1, "a", 1), (1, "a", 1), (1, "b", 2)]


def test_a_full_refresh_of_an_append_starts_over(database: Database) -> None:
    for keyless in (True, False):
        harness = made(database, Mode.APPEND, keyless=keyless)
        load(harness, (1, "a", 1), (2, "gone", 1))
        load(harness, (1, "b", 2), kind=BatchKind.FULL)
        assert database.value(f"SELECT count(*) FROM {harness.physical}") == 1
        assert harness.rows() == [(1, "b", 2)]


def test_replace_without_a_key_swaps_all_rows_in_one_commit(database: Database) -> None:
    harness = made(database, Mode.REPLACE, keyless=True)
    load(harness, (1, "a", None), (1, "a", None), kind=BatchKind.FULL)
    with database.connect() as reader, reader.transaction():
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        count = f"SELECT count(*) FROM {harness.table}"
        assert reader.execute(count).fetchone() == (2,)
        published = load(harness, (2, "b", None), kind=BatchKind.FULL)
        assert reader.execute(count).fetchone() == (2,)
    assert published.changed == 1
    assert harness.rows() == [(2, "b", None)]


def test_a_replace_that_fails_leaves_the_old_table_whole(database: Database) -> None:
    for keyless in (True, False):
        harness = made(database, Mode.REPLACE, keyless=keyless)
        load(harness, (1, "a", 1), (2, "b", 1), kind=BatchKind.FULL)
        harness.refuse_writes()
        with pytest.raises(LoadError):
            load(harness, (3, "c", 1), kind=BatchKind.FULL)
        assert harness.rows() == [(1, "a", 1), (2, "b", 1)]


def test_all_versions_are_kept_and_the_view_shows_the_newest(database: Database) -> None:
    harness = made(database, Mode.APPEND)
    load(harness, (1, "a", 1), (2, "b", 1), update_id="first")
    load(harness, (1, "changed", 2), (3, "c", 2), update_id="second")
    assert harness.rows() == [(1, "changed", 2), (2, "b", 1), (3, "c", 2)]
    versions = database.execute(
        f"SELECT id, name, update_id, loaded_at IS NOT NULL FROM {harness.physical}"
        " ORDER BY load_seq"
    )
    assert versions == [
        (1, "a", "first", True),
        (2, "b", "first", True),
        (1, "changed", "second", True),
        (3, "c", "second", True),
    ]


def test_a_version_that_is_there_already_is_not_appended_again(database: Database) -> None:
    harness = made(database, Mode.APPEND)
    load(harness, (1, "a", 1), (2, None, 1))
    published = load(harness, (1, "a", 1), (2, None, 1), (3, "c", 1))
    assert (published.rows, published.changed) == (3, 1)
    assert database.value(f"SELECT count(*) FROM {harness.physical}") == 3


def test_a_row_that_goes_back_to_what_it_was_is_a_new_version(database: Database) -> None:
    harness = made(database, Mode.APPEND)
    for name in ("a", "b", "a"):
        load(harness, (1, name, 1))
    assert harness.rows() == [(1, "a", 1)]
    assert database.value(f"SELECT count(*) FROM {harness.physical}") == 3


def test_an_older_version_that_comes_late_is_kept_once_and_hidden(database: Database) -> None:
    harness = made(database, Mode.APPEND)
    load(harness, (1, "newer", 8))
    for _ in range(2):
        load(harness, (1, "older", 3))
    assert harness.rows() == [(1, "newer", 8)]
    assert database.value(f"SELECT count(*) FROM {harness.physical}") == 2


def test_several_versions_in_one_batch_are_ordered_by_their_cursor(database: Database) -> None:
    shape = make_shape(COLUMNS, "id", "c", unique=False)
    harness = PostgresHarness(database, shape, Rules(mode=Mode.APPEND))
    rows = [(1, "c", 3), (1, "a", 1), (1, "b", 2), (1, "b", 2)]
    for order in (rows, rows[::-1]):
        load(harness, *order)
        assert harness.rows() == [(1, "c", 3)]
        assert database.value(f"SELECT count(*) FROM {harness.physical}") == 3


def test_a_table_in_the_place_of_the_view_is_refused(database: Database) -> None:
    harness = made(database, Mode.MERGE)
    with pytest.raises(DestinationError, match="is a table; append with a key keeps every version"):
        harness.destination.prepare(harness.shape, harness.watermark(), Rules(mode=Mode.APPEND))


def test_columns_that_the_table_of_versions_adds_are_refused(database: Database) -> None:
    shape = make_shape("id integer, load_seq bigint", "id", None, unique=True)
    with pytest.raises(DeclarationError, match="columns of its own called load_seq"):
        PostgresHarness(database, shape, Rules(mode=Mode.APPEND))


def test_statements_before_and_after_are_part_of_the_load(database: Database) -> None:
    database.execute("CREATE TABLE diary (n bigserial, rows bigint)")
    # Of the target only the statement itself tells the name, so a function looks it up.
    harness = with_rules(
        database,
        Rules(
            before_sql=("INSERT INTO diary (rows) VALUES (-1)",),
            after_sql=("INSERT INTO diary (rows) VALUES (1)", "UPDATE diary SET rows = rows * 10"),
        ),
    )
    load(harness, (1, "a", 1))
    assert database.execute("SELECT rows FROM diary ORDER BY n") == [(-10,), (10,)]


def test_when_a_statement_after_fails_nothing_was_loaded(database: Database) -> None:
    harness = with_rules(database, Rules(after_sql=("SELECT 1 / 0",)))
    with pytest.raises(DestinationError, match=r"after_sql of raw\.orders_.* failed: division by"):
        load(harness, (1, "a", 1), update_id="u")
    assert (harness.rows(), harness.markers()) == ([], [])


def test_one_text_is_one_statement(database: Database) -> None:
    harness = with_rules(database, Rules(before_sql=("SELECT 1; COMMIT",)))
    with pytest.raises(DestinationError, match=r"before_sql .* multiple commands"):
        load(harness, (1, "a", 1))
    assert harness.rows() == []


CHECKED = Rules(
    checks=(Check("named", "name IS NOT NULL"), Check("positive", "c > 0 -- of course")),
    reject_limit=0.5,
)


def rejected(harness: PostgresHarness) -> list[tuple[object, ...]]:
    return harness.database.execute(
        f"SELECT key, failed, row, update_id FROM {harness.table}_rejected ORDER BY id"
    )


def test_rows_that_fail_their_checks_are_set_aside_in_the_same_commit(database: Database) -> None:
    harness = with_rules(database, CHECKED)
    published = load(
        harness, (1, "a", 1), (2, None, -1), (3, "c", None), (4, "d", 4), update_id="u"
    )
    assert harness.rows() == [(1, "a", 1), (3, "c", None), (4, "d", 4)]
    assert (published.rows, published.changed, published.rejected) == (4, 3, 1)
    row = {"id": 2, "name": None, "c": -1}
    assert rejected(harness) == [({"id": 2}, ["named", "positive"], row, "u")]
    assert harness.watermark().rows_synced == 3


def test_a_row_that_was_mended_leaves_the_rejected_ones(database: Database) -> None:
    harness = with_rules(database, CHECKED)
    load(harness, (1, "a", 1), (2, None, 1))
    load(harness, (2, "mended", 2))
    assert harness.rows() == [(1, "a", 1), (2, "mended", 2)]
    assert rejected(harness) == []


def test_a_row_that_goes_bad_keeps_its_last_good_version(database: Database) -> None:
    harness = with_rules(database, CHECKED)
    load(harness, (1, "a", 1), (2, "b", 1))
    load(harness, (1, None, 2), (2, "c", 2))
    assert harness.rows() == [(1, "a", 1), (2, "c", 2)]
    assert [key for key, *_ in rejected(harness)] == [{"id": 1}]


def test_too_many_rejected_rows_stop_the_load_and_are_counted_by_check(database: Database) -> None:
    harness = with_rules(database, CHECKED)
    load(harness, (9, "z", 9))
    with pytest.raises(ChecksFailed, match=r"3 of 4 rows .*: named \(3\), positive \(1\);"):
        load(harness, (1, None, 1), (2, None, -2), (3, "c", 3), (4, None, 4), update_id="bad")
    assert harness.rows() == [(9, "z", 9)]
    assert rejected(harness) == []
    assert "bad" not in harness.markers()


@pytest.mark.parametrize(("limit", "allowed"), [(0.0, 0), (0.05, 1), (0.5, 5), (1.0, 10)])
def test_the_limit_is_a_share_and_allows_one_row_unless_it_is_nothing(
    limit: float, allowed: int
) -> None:
    assert Rules(reject_limit=limit).allowed_rejects(10) == allowed


def test_rows_without_a_key_are_rejected_as_well(database: Database) -> None:
    rules = Rules(mode=Mode.APPEND, checks=CHECKED.checks, reject_limit=1)
    harness = with_rules(database, rules, key="")
    for _ in range(2):
        load(harness, (1, None, 1), (1, "a", 1))
    assert harness.rows() == [(1, "a", 1), (1, "a", 1)]
    assert [key for key, *_ in rejected(harness)] == [{}, {}]


def test_a_full_batch_leaves_no_rejected_rows_of_before(database: Database) -> None:
    rules = Rules(mode=Mode.REPLACE, checks=CHECKED.checks, reject_limit=1)
    harness = with_rules(database, rules, key="")
    for _ in range(2):
        load(harness, (1, None, 1), (1, "a", 1), kind=BatchKind.FULL)
    assert len(rejected(harness)) == 1


def test_a_target_is_dropped_with_all_that_was_made_for_it(database: Database) -> None:
    rules = Rules(mode=Mode.APPEND, checks=CHECKED.checks, reject_limit=1)
    harness = with_rules(database, rules)
    load(harness, (1, None, 1), (2, "a", 1))
    relation = harness.destination.relation
    with harness.destination.open() as connection:
        drop_target(connection, relation)
    left = database.execute("SELECT relname FROM pg_class WHERE relnamespace = 'raw'::regnamespace")
    assert left == []


def test_a_table_that_is_only_called_like_ours_is_not_dropped(database: Database) -> None:
    harness = made(database, Mode.MERGE)
    database.execute(f"CREATE TABLE {harness.table}_rejected (why text)")
    with harness.destination.open() as connection:
        drop_target(connection, harness.destination.relation)
    assert database.execute(f"SELECT * FROM {harness.table}_rejected") == []


def test_a_check_that_cannot_be_evaluated_is_refused_before_anything_is_made(
    database: Database,
) -> None:
    rules = Rules(checks=(Check("typo", "nmae IS NOT NULL"),))
    with pytest.raises(DeclarationError, match=r'check typo cannot be evaluated: .*"nmae"'):
        with_rules(database, rules)
    assert database.execute("SELECT FROM pg_namespace WHERE nspname = 'raw'") == []


def test_an_empty_batch_runs_the_statements_too(database: Database) -> None:
    database.execute("CREATE TABLE diary (n bigserial)")
    harness = with_rules(database, Rules(before_sql=("INSERT INTO diary DEFAULT VALUES",)))
    harness.publish(harness.attempt(), (), Batch(BatchKind.RANGE, None, "3"))
    assert database.value("SELECT count(*) FROM diary") == 1
