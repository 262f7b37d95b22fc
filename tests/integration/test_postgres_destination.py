"""The Postgres destination: the common contract, and what only Postgres has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest

from integration.conftest import Database
from integration.destination_conformance import MergeConformance
from integration.destination_harness import MakeHarness, load, make_shape
from integration.postgres_harness import PostgresHarness, maker, open_session, shared
from tidegate.config.sync import Mode, Rules
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DestinationError, FenceLost, LoadError, TargetGone
from tidegate.core.identity import new_attempt_id, new_write_id, staging_table
from tidegate.core.shape import Shape, StagedColumn
from tidegate.ledger.ledger import Ledger, Staging

__all__ = ["shared"]


class TestMerge(MergeConformance):
    """The contract that all destinations share."""

    @pytest.fixture
    def make_harness(self, shared: Database) -> MakeHarness:
        return maker(shared, Mode.MERGE)


@pytest.fixture
def harness(shared: Database) -> PostgresHarness:
    return PostgresHarness(shared)


def test_unchanged_rows_are_not_written_again(harness: PostgresHarness) -> None:
    load(harness, (1, "a", 1), (2, None, None), (3, "c", 1))
    before = harness.versions()
    load(harness, (1, "a", 1), (2, None, None), (3, "c", 2), (4, "d", 2))
    after = harness.versions()
    assert {key for key in before if before[key] != after[key]} == {3}
    load(harness, (1, "a", 1), (3, "changed", 1), kind=BatchKind.FULL)
    assert harness.versions() == {1: before[1], 3: harness.versions()[3]}


def test_the_target_is_made_with_types_keys_and_not_null(shared: Database) -> None:
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
    harness = PostgresHarness(shared, shape)
    columns = shared.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        f" WHERE attrelid = '{harness.table}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns == [
        ("id", "integer", True),
        ("At All", "numeric(10,2)", True),
        ("c", "timestamp(3) with time zone", False),
    ]
    key = shared.value(
        f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p'"
        f" AND conrelid = '{harness.table}'::regclass"
    )
    assert key == "PRIMARY KEY (id)"
    harness.destination.prepare(shape, harness.watermark(), Rules())


def test_staging_is_unlogged_and_named_for_its_attempt(harness: PostgresHarness) -> None:
    fence = harness.attempt()
    harness.stage(fence, [(1, "a", 1)])
    (name,) = harness.staged()
    assert fence.attempt_id[:16] in name
    kind = f"SELECT relpersistence FROM pg_class WHERE relname = '{name}'"
    assert harness.database.value(kind) == "u"


def remake(harness: PostgresHarness, columns: str) -> None:
    harness.database.execute(
        f"DROP TABLE {harness.table}", f"CREATE TABLE {harness.table} ({columns})"
    )


def test_a_target_of_wider_types_takes_the_rows_again_and_again(harness: PostgresHarness) -> None:
    remake(harness, "id bigint PRIMARY KEY, name varchar, c numeric, extra text DEFAULT 'x'")
    harness.destination.prepare(harness.shape, harness.watermark(), Rules())
    load(harness, (1, "a", 1), (2, "b", 1))
    before = harness.versions()
    assert load(harness, (1, "a", 1), (2, "changed", 2)).changed == 1
    assert [row[:2] for row in harness.rows()] == [(1, "a"), (2, "changed")]
    assert harness.versions()[1] == before[1]


def test_text_that_is_too_long_for_the_target_is_refused_never_cut(shared: Database) -> None:
    shape = make_shape()
    column = StagedColumn("name", "text", "character varying(3)")
    shape = replace(shape, columns=(shape.columns[0], column, shape.columns[2]))
    harness = PostgresHarness(shared, shape)
    load(harness, (1, "abc", 1))
    with pytest.raises(LoadError, match="value too long for type character varying"):
        load(harness, (2, "abcd", 2))
    assert harness.rows() == [(1, "abc", 1)]


REFUSED = {
    "id int PRIMARY KEY, c bigint": 'it has no column name: ALTER TABLE .* ADD COLUMN "name"',
    "id smallint PRIMARY KEY, name text, c bigint": "its column id is smallint, the rows have",
    "id int PRIMARY KEY, name varchar(9), c bigint": r"its column name is character varying\(",
    "id int PRIMARY KEY, name text, c float8": "its column c is double precision, the rows",
    "id int PRIMARY KEY, name text, c date": "its column c is date, the rows have bigint",
    "id int, name text, c bigint": r"it has no unique index on \(id\): ALTER TABLE .* ADD UNI",
    "id int PRIMARY KEY, name text, c bigint, d int NOT NULL": "its column d is NOT NULL and",
    "id int PRIMARY KEY, name text, c bigint GENERATED ALWAYS AS (1) STORED": "c is generated",
    "id text, d int NOT NULL": "column id is text",
}


def test_a_target_that_cannot_take_the_rows_is_refused_by_column(harness: PostgresHarness) -> None:
    for columns, problem in REFUSED.items():
        remake(harness, columns)
        with pytest.raises(DestinationError, match=problem) as raised:
            harness.destination.prepare(harness.shape, harness.watermark(), Rules())
        assert "change the table, or choose another target" in str(raised.value)
    # All that stands in the way of the last one is said at once.
    for part in ("column id is text", "no column name", "no column c", "column d", "unique index"):
        assert part in str(raised.value)
    for kind in ("VIEW {} AS SELECT 1 AS id", "SEQUENCE {}"):
        table = harness.table
        harness.database.execute(
            f"DROP TABLE IF EXISTS {table}" if kind[0] == "V" else f"DROP VIEW {table}",
            f"CREATE {kind}".format(table),
        )
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


def test_a_target_lost_within_its_first_tie_is_noticed(harness: PostgresHarness) -> None:
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "a", 5)])
    harness.publish(fence, writes, Batch(BatchKind.TIE, None, "5", None, ("1",)))
    assert harness.watermark().value is None
    harness.database.execute(f"TRUNCATE {harness.table}")
    with pytest.raises(TargetGone):
        harness.destination.check_present(harness.watermark())


def trigger(
    harness: PostgresHarness, name: str, body: str, kind: str = "TRIGGER {} BEFORE INSERT ON {}"
) -> None:
    """Something that happens to every publish into the target."""
    harness.database.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} END'",
        f"CREATE {kind.format(name, harness.table)} EXECUTE FUNCTION {name}()",
    )


def test_a_publish_that_waits_for_a_lock_or_takes_too_long_gives_up_in_time(
    shared: Database,
) -> None:
    harness = PostgresHarness(shared, lock_timeout_seconds=0.2)
    load(harness, (1, "a", 1))
    with shared.connect() as reader:
        reader.execute("BEGIN")
        reader.execute(f"LOCK TABLE {harness.table}")  # type: ignore[arg-type]
        with pytest.raises(DestinationError, match="another session holds a lock"):
            load(harness, (2, "b", 2))
    assert (harness.rows(), len(harness.markers())) == ([(1, "a", 1)], 1)
    harness = PostgresHarness(shared, publish_timeout_seconds=0.2)
    trigger(harness, "slow", "PERFORM pg_sleep(30); RETURN NEW;")
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
    harness.database.execute("CREATE SEQUENCE once")
    die = "IF nextval(''once'') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
    trigger(harness, "die", f"{die} RETURN NEW;")
    published = load(harness, (1, "a", 1), update_id="u")
    assert (published.rows, published.already) == (1, False)
    assert (harness.rows(), harness.markers()) == ([(1, "a", 1)], ["u"])
    assert harness.watermark().version == 1


def test_a_commit_that_is_refused_leaves_no_row_no_marker_and_no_move(
    harness: PostgresHarness,
) -> None:
    load(harness, (1, "a", 1), high=1, update_id="u1")
    late = "CONSTRAINT TRIGGER {} AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    trigger(harness, "refuse", "RAISE check_violation;", late)
    with pytest.raises(LoadError, match="publishing into"):
        load(harness, (2, "b", 2), high=2, update_id="u2")
    assert (harness.rows(), harness.markers()) == ([(1, "a", 1)], ["u1"])
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


OURS, THEIRS = uuid4(), uuid4()


class Staged:
    """Staging tables of two control planes, made and looked at by hand."""

    def __init__(self, database: Database) -> None:
        self.database = database
        ledger = Ledger(connect=partial(open_session, database.conninfo))
        ledger.ensure()
        self.staging = Staging(ledger)

    def stage(self, control_id: UUID, attempt_id: str) -> str:
        table = staging_table(control_id, attempt_id, new_write_id())
        self.database.execute(f'CREATE UNLOGGED TABLE tidegate."{table}" (n int)')
        return table

    def left(self) -> set[str]:
        rows = self.database.execute("SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%'")
        return {row[0] for row in rows}


def test_a_sweep_drops_only_dead_attempts_of_its_own_control_plane(database: Database) -> None:
    staged = Staged(database)
    dead, live, other, mine = (new_attempt_id() for _ in range(4))
    for _ in range(2):
        staged.stage(OURS, dead)
    staged.stage(OURS, mine)
    kept = {staged.stage(OURS, live), staged.stage(THEIRS, other), staged.stage(THEIRS, mine)}
    database.execute("CREATE TABLE tidegate.stg_mine (n int)")
    with database.connect() as session:
        assert staged.staging.discard(session, OURS, mine) == 1
        assert staged.staging.sweep(session, OURS, lambda: {live}) == 2
        assert staged.left() == {*kept, "stg_mine"}
        assert staged.staging.sweep(session, OURS, lambda: {live}) == 0
        nowhere = Ledger(connect=partial(open_session, database.conninfo), schema="nowhere")
        assert Staging(nowhere).sweep(session, OURS, set) == 0


def test_a_sweep_leaves_what_begins_meanwhile_and_what_is_still_written(
    database: Database,
) -> None:
    """Who claims after the sweep began is not on a list made earlier, and not to be dropped."""
    staged = Staged(database)
    attempt, late = new_attempt_id(), new_attempt_id()
    busy, _ = (staged.stage(OURS, attempt) for _ in range(2))

    def live_attempts() -> set[str]:
        staged.stage(OURS, late)
        return set()

    with database.connect() as writer, database.connect() as session:
        writer.execute("BEGIN")
        writer.execute(f'INSERT INTO tidegate."{busy}" VALUES (1)')
        assert staged.staging.sweep(session, OURS, live_attempts) == 1
        assert staged.staging.tables(session, OURS, late)
        assert staged.staging.tables(session, OURS, attempt)
        writer.execute("ROLLBACK")
        assert staged.staging.sweep(session, OURS, lambda: {late}) == 1
        assert not staged.staging.tables(session, OURS, attempt)
