"""The modes beside merge: the common contract, and what each does with its rows."""

from __future__ import annotations

import pytest

from integration.conftest import Database
from integration.destination_conformance import ProtocolConformance, RowsConformance
from integration.destination_harness import COLUMNS, MakeHarness, load
from integration.postgres_harness import PostgresHarness, make_shape, maker
from integration.postgres_harness import shared as database
from tidegate.config.sync import Mode, RowCheck, Rules
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import ChecksFailed, DeclarationError, DestinationError, LoadError
from tidegate.load.targets.postgres.table import drop_target

__all__ = ["database"]


def made(database: Database, mode: Mode, *, keyless: bool = False) -> PostgresHarness:
    harness = maker(database, mode, keyless=keyless)()
    assert isinstance(harness, PostgresHarness)
    return harness


def with_rules(database: Database, rules: Rules, *, key: str = "id") -> PostgresHarness:
    return PostgresHarness(database, make_shape(COLUMNS, key, "c", unique=bool(key)), rules)


def stored(harness: PostgresHarness) -> int:
    return int(harness.database.value(f"SELECT count(*) FROM {harness.physical}"))


@pytest.fixture(
    params=[
        pytest.param((Mode.DELETE_INSERT, False), id="delete_insert"),
        pytest.param((Mode.APPEND, True), id="append"),
        pytest.param((Mode.APPEND, False), id="versions"),
        pytest.param((Mode.REPLACE, False), id="replace by key"),
        pytest.param((Mode.REPLACE, True), id="replace"),
    ]
)
def make_harness(database: Database, request: pytest.FixtureRequest) -> MakeHarness:
    mode, keyless = request.param
    return maker(database, mode, keyless=keyless)


class TestRows(RowsConformance):
    """Every mode does with its rows what merge does."""


@pytest.mark.chaos
class TestProtocol(ProtocolConformance):
    """All that merge proves of fences, staging and watermarks goes for every mode."""


def test_delete_insert_writes_every_row_of_the_batch_anew(database: Database) -> None:
    harness = made(database, Mode.DELETE_INSERT)
    # It needs no unique index.
    database.execute(f"ALTER TABLE {harness.table} DROP CONSTRAINT {harness.table[4:]}_pkey")
    load(harness, (1, "a", 1), (2, "b", 1))
    before = harness.versions()
    published = load(harness, (1, "a", 1), (3, "new", 2))
    after = harness.versions()
    assert harness.rows() == [(1, "a", 1), (2, "b", 1), (3, "new", 2)]
    assert published.changed == 2
    assert before[1] != after[1]
    assert before[2] == after[2]
    load(harness, (1, "again", 1), kind=BatchKind.FULL)
    assert harness.rows() == [(1, "again", 1)]


def test_a_cascading_key_is_refused_where_rows_go_to_come_back(database: Database) -> None:
    for mode, action in (
        (Mode.DELETE_INSERT, "CASCADE"),
        (Mode.DELETE_INSERT, "SET DEFAULT"),
        (Mode.REPLACE, "SET NULL"),
    ):
        harness = made(database, mode, keyless=mode is Mode.REPLACE)
        if mode is Mode.REPLACE:
            database.execute(f"ALTER TABLE {harness.table} ADD UNIQUE (id)")
        items = f'"Items of {harness.table[4:]}"'
        database.execute(
            f"CREATE TABLE {items} (id integer REFERENCES {harness.table} (id) ON DELETE {action})"
        )
        with pytest.raises(DestinationError, match=f"of public.{items} would take its rows along"):
            harness.destination.prepare(harness.shape, harness.watermark(), harness.rules)


def test_merge_and_replace_by_key_live_with_a_cascading_key(database: Database) -> None:
    for mode in (Mode.MERGE, Mode.REPLACE):
        harness = made(database, mode)
        database.execute(
            f"CREATE TABLE lines_{mode} (id integer REFERENCES {harness.table} ON DELETE CASCADE)"
        )
        load(harness, (1, "a", 1), (2, "b", 1), (3, "gone", 1), kind=BatchKind.FULL)
        database.execute(f"INSERT INTO lines_{mode} VALUES (1)")
        published = load(harness, (1, "changed", 2), (2, "b", 1), kind=BatchKind.FULL)
        assert database.value(f"SELECT count(*) FROM lines_{mode}") == 1
        # Only what differs is touched.
        assert published.changed == 2
        assert harness.rows() == [(1, "changed", 2), (2, "b", 1)]


def test_an_append_adds_every_row_and_a_full_refresh_starts_over(database: Database) -> None:
    harness = made(database, Mode.APPEND, keyless=True)
    load(harness, (1, "a", 1), (1, "a", 1))
    assert load(harness, (1, "b", 2)).changed == 1
    assert harness.rows() == [(1, "a", 1), (1, "a", 1), (1, "b", 2)]
    for keyless in (True, False):
        harness = made(database, Mode.APPEND, keyless=keyless)
        load(harness, (1, "a", 1), (2, "gone", 1))
        load(harness, (1, "b", 2), kind=BatchKind.FULL)
        assert stored(harness) == 1
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


def test_all_versions_are_kept_once_and_the_view_shows_the_newest(database: Database) -> None:
    harness = made(database, Mode.APPEND)
    load(harness, (1, "a", 1), (2, None, 1), update_id="first")
    load(harness, (1, "changed", 2), (3, "c", 2), update_id="second")
    assert harness.rows() == [(1, "changed", 2), (2, None, 1), (3, "c", 2)]
    versions = database.execute(
        f"SELECT id, name, update_id, loaded_at IS NOT NULL FROM {harness.physical}"
        " ORDER BY load_seq"
    )
    assert versions == [
        (1, "a", "first", True),
        (2, None, "first", True),
        (1, "changed", "second", True),
        (3, "c", "second", True),
    ]
    # A version that is there already is not appended again.
    published = load(harness, (1, "changed", 2), (2, None, 1), (4, "d", 1))
    assert (published.rows, published.changed, stored(harness)) == (3, 1, 5)
    # A row that goes back to what it was is a new version.
    for name in ("x", "c"):
        load(harness, (3, name, 2))
    assert (harness.rows()[2], stored(harness)) == ((3, "c", 2), 7)
    # An older version that comes late is kept once, and hidden.
    for _ in range(2):
        load(harness, (1, "older", 0))
    assert (harness.rows()[0], stored(harness)) == ((1, "changed", 2), 8)


def test_several_versions_in_one_batch_are_ordered_by_their_cursor(database: Database) -> None:
    shape = make_shape(COLUMNS, "id", "c", unique=False)
    harness = PostgresHarness(database, shape, Rules(mode=Mode.APPEND))
    rows = [(1, "c", 3), (1, "a", 1), (1, "b", 2), (1, "b", 2)]
    for order in (rows, rows[::-1]):
        load(harness, *order)
        assert harness.rows() == [(1, "c", 3)]
        assert stored(harness) == 3


def test_what_versions_and_checks_cannot_work_with_is_refused(database: Database) -> None:
    harness = made(database, Mode.MERGE)
    with pytest.raises(DestinationError, match="is a table; append with a key keeps every version"):
        harness.destination.prepare(harness.shape, harness.watermark(), Rules(mode=Mode.APPEND))
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'raw'::regnamespace"
    before = database.value(tables)
    shape = make_shape("id integer, load_seq bigint", "id", None, unique=True)
    with pytest.raises(DeclarationError, match="columns of its own called load_seq"):
        PostgresHarness(database, shape, Rules(mode=Mode.APPEND))
    rules = Rules(checks=(RowCheck("typo", "nmae IS NOT NULL"),))
    with pytest.raises(DeclarationError, match=r'check typo cannot be evaluated: .*"nmae"'):
        with_rules(database, rules)
    assert database.value(tables) == before


def test_statements_before_and_after_are_part_of_the_load(database: Database) -> None:
    database.execute("CREATE TABLE diary (n bigserial, rows bigint)")
    harness = with_rules(
        database,
        Rules(
            before_sql=("INSERT INTO diary (rows) VALUES (-1)",),
            after_sql=("INSERT INTO diary (rows) VALUES (1)", "UPDATE diary SET rows = rows * 10"),
        ),
    )
    load(harness, (1, "a", 1))
    assert database.execute("SELECT rows FROM diary ORDER BY n") == [(-10,), (10,)]
    # They run with an empty batch too.
    harness.publish(harness.attempt(), (), Batch(BatchKind.RANGE, None, "30"))
    assert database.value("SELECT count(*) FROM diary") == 4


def test_when_a_statement_fails_nothing_was_loaded(database: Database) -> None:
    for rules, words in (
        (Rules(after_sql=("SELECT 1 / 0",)), r"after_sql of raw\.orders_.* failed: division by"),
        # One text is one statement.
        (Rules(before_sql=("SELECT 1; COMMIT",)), r"before_sql .* multiple commands"),
    ):
        harness = with_rules(database, rules)
        with pytest.raises(DestinationError, match=words):
            load(harness, (1, "a", 1), update_id="u")
        assert (harness.rows(), harness.markers()) == ([], [])


CHECKED = Rules(
    checks=(RowCheck("named", "name IS NOT NULL"), RowCheck("positive", "c > 0 -- of course")),
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
    # A row that was mended leaves the rejected ones; one that goes bad keeps its good version.
    load(harness, (2, "mended", 2), (1, None, 2))
    assert harness.rows() == [(1, "a", 1), (2, "mended", 2), (3, "c", None), (4, "d", 4)]
    assert [key for key, *_ in rejected(harness)] == [{"id": 1}]
    before = harness.rows()
    with pytest.raises(ChecksFailed, match=r"3 of 4 rows .*: named \(3\), positive \(1\);"):
        load(harness, (5, None, 1), (6, None, -2), (7, "c", 3), (8, None, 4), update_id="bad")
    assert harness.rows() == before
    assert [key for key, *_ in rejected(harness)] == [{"id": 1}]
    assert "bad" not in harness.markers()


def test_the_limit_is_a_share_and_allows_one_row_unless_it_is_nothing() -> None:
    for limit, allowed in ((0.0, 0), (0.05, 1), (0.5, 5), (1.0, 10)):
        assert Rules(reject_limit=limit).allowed_rejects(10) == allowed


def test_rows_without_a_key_are_rejected_as_well(database: Database) -> None:
    harness = with_rules(
        database, Rules(mode=Mode.APPEND, checks=CHECKED.checks, reject_limit=1), key=""
    )
    for _ in range(2):
        load(harness, (1, None, 1), (1, "a", 1))
    assert harness.rows() == [(1, "a", 1), (1, "a", 1)]
    assert [key for key, *_ in rejected(harness)] == [{}, {}]
    # A full batch leaves none of those before.
    harness = with_rules(
        database, Rules(mode=Mode.REPLACE, checks=CHECKED.checks, reject_limit=1), key=""
    )
    for _ in range(2):
        load(harness, (1, None, 1), (1, "a", 1), kind=BatchKind.FULL)
    assert len(rejected(harness)) == 1


def test_a_target_is_dropped_with_all_that_was_made_for_it_and_no_more(database: Database) -> None:
    rules = Rules(mode=Mode.APPEND, checks=CHECKED.checks, reject_limit=1)
    harness = with_rules(database, rules)
    load(harness, (1, None, 1), (2, "a", 1))
    named = f"SELECT relname FROM pg_class WHERE relname LIKE '{harness.table[4:]}%'"
    assert database.execute(named)
    with harness.destination.open() as connection:
        drop_target(connection, harness.destination.relation)
    assert database.execute(named) == []
    # A table that is only called like ours stays.
    harness = made(database, Mode.MERGE)
    database.execute(f"CREATE TABLE {harness.table}_rejected (why text)")
    with harness.destination.open() as connection:
        drop_target(connection, harness.destination.relation)
    assert database.execute(f"SELECT * FROM {harness.table}_rejected") == []
