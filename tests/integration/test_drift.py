"""Drift at the destination: every kind of it, under evolve and under freeze."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.conftest import Database
from integration.destination_conformance import load
from integration.drifted import BEFORE, EVOLVE, FREEZE, Target, columns, loaded
from integration.postgres_harness import PostgresHarness
from tidegate.errors import DriftRefused, FenceLost
from tidegate.model.rules import Check, Mode, Rules


@pytest.fixture
def target(database: Database) -> Target:
    return loaded(database, columns(BEFORE), (1, "a", 1, 1), (2, "b", 2, 1))


def test_no_drift_is_no_change_and_no_note(target: Target) -> None:
    before = target.columns()
    assert target.prepare(columns(BEFORE)) == ()
    assert target.prepare(columns(BEFORE), FREEZE) == ()
    assert target.columns() == before


def test_a_new_column_is_added_and_old_rows_have_null_there(target: Target) -> None:
    filenode = target.filenode()
    wider = columns(BEFORE + ", New Col text", not_null="x")
    wider = replace(
        wider,
        columns=(
            *wider.columns[:4],
            replace(wider.columns[0], name='New "Col"', target_type="text", staged_type="text"),
        ),
    )
    notes = target.load(wider, (2, "b", 2, 2, "x"), (3, "c", 3, 2, "y"))
    assert target.rows('id, "New ""Col"""') == [(1, None), (2, "x"), (3, "y")]
    assert target.filenode() == filenode
    assert "is new and is added" in notes[0]
    assert "rows loaded before have NULL there until they change" in notes[0]
    assert "--full-refresh" in notes[0]
    assert target.prepare(wider) == ()


def test_a_new_column_that_is_not_null_in_the_source_is_added_nullable(target: Target) -> None:
    target.load(columns(BEFORE + ", x integer", not_null="x"), (3, "c", 3, 2, 7))
    assert target.columns()["x"] == ("integer", False)
    assert target.rows("id, x") == [(1, None), (2, None), (3, 7)]


def test_a_new_column_is_refused_under_freeze_with_every_way_out(target: Target) -> None:
    shape = columns(BEFORE + ", x integer, y text")
    said = target.refused(shape, FREEZE)
    assert "column x integer is new; column y text is new" in said
    assert 'drift = "evolve"' in said
    assert "exclude_columns" in said
    table = target.harness.destination.relation.name
    statement = f'ALTER TABLE "raw"."{table}" ADD COLUMN IF NOT EXISTS "x" integer'
    assert statement in said
    target.harness.database.execute(statement, f'ALTER TABLE raw."{table}" ADD COLUMN y text')
    notes = target.prepare(shape, FREEZE)
    assert [note.split(";")[0] for note in notes] == [
        "column x is loaded from now on",
        "column y is loaded from now on",
    ]


def test_a_dropped_column_stays_with_its_values(target: Target) -> None:
    shape = columns("id integer, name text, c bigint")
    notes = target.load(shape, (2, "changed", 2), (3, "new", 2))
    assert target.rows("id, name, n") == [(1, "a", 1), (2, "changed", 2), (3, "new", None)]
    assert len(notes) == 1
    assert "column n is gone from the source" in notes[0]
    assert target.prepare(shape) == ()


def test_a_dropped_column_that_was_not_null_does_not_stop_new_rows(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n"), (1, "a", 1, 1))
    assert target.columns()["n"] == ("integer", True)
    target.load(columns("id integer, name text, c bigint"), (2, "b", 2))
    assert target.columns()["n"] == ("integer", False)
    assert target.rows("id, n") == [(1, 1), (2, None)]


def test_a_dropped_column_with_a_default_keeps_its_not_null(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n"), (1, "a", 1, 1))
    database.execute(f"ALTER TABLE {target.harness.table} ALTER n SET DEFAULT 9")
    target.load(columns("id integer, name text, c bigint"), (2, "b", 2))
    assert target.columns()["n"] == ("integer", True)
    assert target.rows("id, n") == [(1, 1), (2, 9)]


def test_a_dropped_column_is_refused_under_freeze(target: Target) -> None:
    shape = columns("id integer, name text, c bigint")
    said = target.refused(shape, FREEZE)
    assert "column n is gone" in said
    assert 'DROP COLUMN "n"' in said
    target.harness.database.execute(f"ALTER TABLE {target.harness.table} DROP COLUMN n")
    assert target.prepare(shape, FREEZE) == ()


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_a_column_that_the_declaration_leaves_out_is_no_drift(target: Target, rules: Rules) -> None:
    shape = columns("id integer, name text, c bigint")
    assert target.prepare(shape, rules, source_names=("id", "name", "n", "c")) == ()


def test_a_column_left_out_is_freed_of_not_null_by_evolve_alone(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n"), (1, "a", 1, 1))
    shape = columns("id integer, name text, c bigint")
    names = ("id", "name", "n", "c")
    assert "its column n is NOT NULL and nothing" in target.refused(
        shape, FREEZE, source_names=names
    )
    assert target.prepare(shape, source_names=names) == ()
    assert target.columns()["n"] == ("integer", False)


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_a_column_of_the_users_own_in_the_target_is_no_drift(target: Target, rules: Rules) -> None:
    target.harness.database.execute(f"ALTER TABLE {target.harness.table} ADD mine text DEFAULT 'x'")
    assert target.prepare(columns(BEFORE), rules) == ()
    assert target.columns()["mine"] == ("text", False)


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_a_column_dropped_in_the_target_is_not_made_again(target: Target, rules: Rules) -> None:
    target.harness.database.execute(f"ALTER TABLE {target.harness.table} DROP COLUMN n")
    assert "it has no column n" in target.refused(columns(BEFORE), rules)


def test_a_renamed_column_is_added_and_the_old_one_stays(target: Target) -> None:
    shape = columns("id integer, title text, n integer, c bigint")
    notes = target.load(shape, (2, "B", 2, 2))
    assert target.rows("id, name, title") == [(1, "a", None), (2, "b", "B")]
    table = target.harness.destination.relation.name
    assert any(
        "title looks like name under a new name" in note
        and f'ALTER TABLE "raw"."{table}" RENAME COLUMN "name" TO "title"' in note
        for note in notes
    )


def test_a_rename_is_refused_under_freeze_and_renaming_the_target_is_the_way_out(
    target: Target,
) -> None:
    shape = columns("id integer, title text, n integer, c bigint")
    said = target.refused(shape, FREEZE)
    assert "column title text is new; column name is gone" in said
    assert "if name was renamed: ALTER TABLE" in said
    target.harness.database.execute(
        f"ALTER TABLE {target.harness.table} RENAME COLUMN name TO title"
    )
    target.prepare(shape, FREEZE)
    load(target.harness, (2, "B", 2, 2), high=20)
    assert target.rows("id, title") == [(1, "a"), (2, "B")]


def test_another_type_or_place_is_not_taken_for_a_rename(target: Target) -> None:
    for text in (
        "id integer, title varchar, n integer, c bigint",
        "id integer, n integer, c bigint, title text",
    ):
        notes = target.prepare(columns(text), Rules())
        assert not [note for note in notes if "looks like" in note]
        target.harness.database.execute(f"ALTER TABLE {target.harness.table} DROP COLUMN title")


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_not_null_added_in_the_source_changes_nothing(target: Target, rules: Rules) -> None:
    assert target.prepare(columns(BEFORE, not_null="n"), rules) == ()
    assert target.columns()["n"] == ("integer", False)


def test_not_null_dropped_in_the_source_is_dropped_in_the_target(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n id"), (1, "a", 1, 1))
    assert "column n may be NULL now" in target.refused(columns(BEFORE), FREEZE)
    target.load(columns(BEFORE), (2, "b", None, 2))
    assert target.columns()["n"] == ("integer", False)
    assert target.columns()["id"] == ("integer", True)
    assert target.rows("id, n") == [(1, 1), (2, None)]


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_not_null_of_the_users_own_is_left_alone(target: Target, rules: Rules) -> None:
    target.harness.database.execute(f"ALTER TABLE {target.harness.table} ALTER n SET NOT NULL")
    assert target.prepare(columns(BEFORE), rules) == ()
    assert target.columns()["n"] == ("integer", True)


def test_a_table_that_we_never_loaded_is_not_altered(database: Database) -> None:
    harness = PostgresHarness(database, columns(BEFORE))
    database.execute(f"ALTER TABLE {harness.table} DROP COLUMN n", "DELETE FROM tidegate.etl_state")
    assert "it has no column n" in Target(harness).refused(columns(BEFORE), EVOLVE)


def test_a_first_run_that_died_after_making_the_target_may_drift(database: Database) -> None:
    target = Target(PostgresHarness(database, columns(BEFORE)))
    target.load(columns(BEFORE + ", x integer"), (1, "a", 1, 1, 5))
    assert target.rows("id, x") == [(1, 5)]


def test_a_view_on_a_widened_column_is_named(database: Database) -> None:
    shape = columns("id integer, name character varying(9), c bigint")
    target = loaded(database, shape, (1, "a", 1))
    database.execute(f"CREATE VIEW seen AS SELECT upper(name) FROM {target.harness.table}")
    said = target.refused(columns("id integer, name text, c bigint"), EVOLVE)
    assert "public.seen reads it" in said
    assert "drop public.seen, run again" in said


def test_what_postgres_refuses_is_told_with_the_statement(database: Database) -> None:
    shape = columns("id integer, name character varying(9), c bigint")
    target = loaded(database, shape, (1, "a", 1))
    database.execute(
        f"ALTER TABLE {target.harness.table} ADD g text GENERATED ALWAYS AS (lower(name)) STORED"
    )
    said = target.refused(columns("id integer, name text, c bigint"), EVOLVE)
    assert "cannot alter type of a column used by a generated column" in said
    assert 'ALTER COLUMN "name" TYPE text' in said


@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_a_value_that_the_targets_enum_lacks_is_named(database: Database, rules: Rules) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    shape = columns("id integer, m text, c bigint")
    shape = replace(
        shape,
        columns=(
            shape.columns[0],
            replace(shape.columns[1], target_type="public.mood"),
            shape.columns[2],
        ),
    )
    target = Target(PostgresHarness(database, shape, rules))
    load(target.harness, (1, "good", 1), (2, None, 1))
    with pytest.raises(DriftRefused) as raised:
        load(target.harness, (3, "so'so", 2))
    assert "column m of the rows for raw.orders" in str(raised.value)
    assert "ALTER TYPE public.mood ADD VALUE 'so''so'" in str(raised.value)
    assert target.rows("id") == [(1,), (2,)]
    database.execute("ALTER TYPE mood ADD VALUE 'so''so'")
    load(target.harness, (3, "so'so", 2))
    assert target.rows("id, m::text")[2] == (3, "so'so")


def test_rows_set_aside_keep_the_columns_they_came_with(database: Database) -> None:
    rules = Rules(checks=(Check("positive", "n > 0"),), reject_limit=1.0)
    target = Target(PostgresHarness(database, columns(BEFORE), rules))
    load(target.harness, (1, "a", -1, 1))
    shape = columns(BEFORE + ", x integer")
    target.harness.destination.prepare(shape, target.harness.watermark(), rules)
    target.harness.shape = shape
    load(target.harness, (2, "b", -1, 2, 7))
    rows = database.execute(f"SELECT row ->> 'x' FROM {target.harness.table}_rejected ORDER BY id")
    assert rows == [(None,), ("7",)]


@pytest.mark.parametrize("mode", [Mode.DELETE_INSERT, Mode.REPLACE, Mode.APPEND])
def test_the_other_modes_evolve_too(database: Database, mode: Mode) -> None:
    keyless = "" if mode is Mode.APPEND else "id"
    first = columns(BEFORE, key=keyless)
    target = loaded(database, first, (1, "a", 1, 1), rules=Rules(mode=mode))
    notes = target.load(columns(BEFORE + ", x text", key=keyless), (2, "b", 2, 2, "x"))
    assert target.rows("id, x")[-1] == (2, "x")
    assert ("until they change" in notes[0]) == (mode is not Mode.REPLACE)


def test_a_partitioned_target_evolves_with_its_partitions(database: Database) -> None:
    harness = PostgresHarness(database, columns(BEFORE))
    database.execute(
        f"DROP TABLE {harness.table}",
        f"CREATE TABLE {harness.table} (id integer PRIMARY KEY, name varchar(5), n integer,"
        " c bigint) PARTITION BY RANGE (id)",
        f"CREATE TABLE {harness.table}_1 PARTITION OF {harness.table} FOR VALUES FROM (0) TO (9)",
    )
    target = Target(harness)
    target.record(columns("id integer, name character varying(5), n integer, c bigint"))
    target.load(columns(BEFORE + ", x text"), (1, "a long name", 1, 1, "x"))
    assert target.rows("name, x") == [("a long name", "x")]


def test_a_stale_attempt_changes_nothing(target: Target) -> None:
    old = target.harness.attempt()
    target.harness.attempt()
    before = target.columns()
    with pytest.raises(FenceLost):
        target.prepare(columns(BEFORE + ", x text"), fence=old)
    assert target.columns() == before
    target.prepare(columns(BEFORE + ", x text"), fence=target.harness.attempt())
    assert "x" in target.columns()
