"""Drift at the destination: every kind of it, under evolve and under freeze."""

from __future__ import annotations

import re
from dataclasses import replace
from uuid import UUID

import pytest

from integration.conftest import Database, Make
from integration.destination_harness import load
from integration.drifted import BEFORE, EVOLVE, FREEZE, Target, columns, loaded
from integration.orders import CREATE, ORDERS
from integration.postgres_harness import PostgresHarness
from integration.postgres_harness import shared as database
from tidegate.config.sync import Mode, RowCheck, Rules
from tidegate.core import failpoints
from tidegate.core.errors import DriftRefused, FenceLost

__all__ = ["database"]

WITHOUT_N = "id integer, name text, c bigint"
RENAMED = "id integer, title text, n integer, c bigint"


@pytest.fixture
def target(database: Database) -> Target:
    return loaded(database, columns(BEFORE), (1, "a", 1, 1), (2, "b", 2, 1))


def test_a_new_column_is_added_and_old_rows_have_null_there(target: Target) -> None:
    for rules in (EVOLVE, FREEZE):
        assert target.prepare(columns(BEFORE), rules) == (), "no drift is no change and no note"
    filenode = target.filenode()
    wider = columns(BEFORE + ", x integer, New Col text", not_null="x")
    named = replace(wider.columns[5], name='New "Col"', target_type="text", staged_type="text")
    wider = replace(wider, columns=(*wider.columns[:5], named))
    notes = target.load(wider, (2, "b", 2, 2, 7, "x"), (3, "c", 3, 2, 8, "y"))
    assert target.rows('id, x, "New ""Col"""') == [(1, None, None), (2, 7, "x"), (3, 8, "y")]
    # It is added nullable, whatever it is in the source, and without writing the table anew.
    assert target.columns()["x"] == ("integer", False)
    assert target.filenode() == filenode
    assert "is new and is added" in notes[0]
    assert "rows loaded before have NULL there until they change" in notes[0]
    assert "--full-refresh" in notes[0]
    assert target.prepare(wider) == ()


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
    shape = columns(WITHOUT_N)
    said = target.refused(shape, FREEZE)
    assert "column n is gone" in said
    assert 'DROP COLUMN "n"' in said
    # One that the declaration leaves out is no drift.
    for rules in (EVOLVE, FREEZE):
        assert target.prepare(shape, rules, source_names=("id", "name", "n", "c")) == ()
    notes = target.load(shape, (2, "changed", 2), (3, "new", 2))
    assert target.rows("id, name, n") == [(1, "a", 1), (2, "changed", 2), (3, "new", None)]
    assert len(notes) == 1
    assert "column n is gone from the source" in notes[0]
    assert target.prepare(shape) == ()
    # One that was dropped in the target is not made again.
    target.harness.database.execute(f"ALTER TABLE {target.harness.table} DROP COLUMN n")
    assert target.prepare(shape, FREEZE) == ()
    for rules in (EVOLVE, FREEZE):
        target.record(columns(BEFORE))
        assert "it has no column n" in target.refused(columns(BEFORE), rules)


def test_a_dropped_column_that_was_not_null_does_not_stop_new_rows(database: Database) -> None:
    for default, left in ((None, (None, False)), (9, (9, True))):
        target = loaded(database, columns(BEFORE, not_null="n"), (1, "a", 1, 1))
        assert target.columns()["n"] == ("integer", True)
        if default:
            database.execute(f"ALTER TABLE {target.harness.table} ALTER n SET DEFAULT {default}")
        target.load(columns(WITHOUT_N), (2, "b", 2))
        assert target.columns()["n"] == ("integer", left[1])
        assert target.rows("id, n") == [(1, 1), (2, left[0])]


def test_a_column_left_out_is_freed_of_not_null_by_evolve_alone(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n"), (1, "a", 1, 1))
    shape, names = columns(WITHOUT_N), ("id", "name", "n", "c")
    said = target.refused(shape, FREEZE, source_names=names)
    assert "its column n is NOT NULL and nothing" in said
    assert target.prepare(shape, source_names=names) == ()
    assert target.columns()["n"] == ("integer", False)


def test_what_is_the_users_own_in_the_target_is_no_drift(target: Target) -> None:
    table = target.harness.table
    # NOT NULL that the source adds changes nothing either.
    for rules in (EVOLVE, FREEZE):
        assert target.prepare(columns(BEFORE, not_null="n"), rules) == ()
    assert target.columns()["n"] == ("integer", False)
    target.harness.database.execute(
        f"ALTER TABLE {table} ADD mine text DEFAULT 'x', ALTER n SET NOT NULL"
    )
    for rules in (EVOLVE, FREEZE):
        assert target.prepare(columns(BEFORE), rules) == ()
    assert target.columns()["n"] == ("integer", True)


def test_not_null_dropped_in_the_source_is_dropped_in_the_target(database: Database) -> None:
    target = loaded(database, columns(BEFORE, not_null="n id"), (1, "a", 1, 1))
    assert "column n may be NULL now" in target.refused(columns(BEFORE), FREEZE)
    target.load(columns(BEFORE), (2, "b", None, 2))
    assert target.columns()["n"] == ("integer", False)
    assert target.columns()["id"] == ("integer", True)
    assert target.rows("id, n") == [(1, 1), (2, None)]


def test_a_renamed_column_is_added_and_the_old_one_stays(target: Target) -> None:
    shape = columns(RENAMED)
    notes = target.load(shape, (2, "B", 2, 2))
    assert target.rows("id, name, title") == [(1, "a", None), (2, "b", "B")]
    table = target.harness.destination.relation.name
    assert any(
        "title looks like name under a new name" in note
        and f'ALTER TABLE "raw"."{table}" RENAME COLUMN "name" TO "title"' in note
        for note in notes
    )


def test_a_rename_is_refused_under_freeze_with_the_way_out(target: Target) -> None:
    shape = columns(RENAMED)
    said = target.refused(shape, FREEZE)
    assert "column title text is new; column name is gone" in said
    assert "if name was renamed: ALTER TABLE" in said
    target.harness.database.execute(
        f"ALTER TABLE {target.harness.table} RENAME COLUMN name TO title"
    )
    target.prepare(shape, FREEZE)
    load(target.harness, (2, "B", 2, 2), high=20)
    assert target.rows("id, title") == [(1, "a"), (2, "B")]


def test_a_table_that_we_never_loaded_is_altered_only_if_we_made_it(database: Database) -> None:
    # A first run may have died after it made the target.
    target = Target(PostgresHarness(database, columns(BEFORE)))
    target.load(columns(BEFORE + ", x integer"), (1, "a", 1, 1, 5))
    assert target.rows("id, x") == [(1, 5)]
    harness = PostgresHarness(database, columns(BEFORE))
    database.execute(
        f"ALTER TABLE {harness.table} DROP COLUMN n",
        f"DELETE FROM tidegate.etl_state WHERE table_name = '{harness.table}'",
    )
    assert "it has no column n" in Target(harness).refused(columns(BEFORE), EVOLVE)


def test_what_stands_in_the_way_of_a_change_is_named(database: Database) -> None:
    shape = columns("id integer, name character varying(9), c bigint")
    wider = columns(WITHOUT_N)
    target = loaded(database, shape, (1, "a", 1))
    table = target.harness.table
    database.execute(f"CREATE VIEW seen AS SELECT upper(name) FROM {table}")
    said = target.refused(wider, EVOLVE)
    assert "public.seen reads it" in said
    assert "drop public.seen, run again" in said
    database.execute(
        "DROP VIEW seen",
        f"ALTER TABLE {table} ADD g text GENERATED ALWAYS AS (lower(name)) STORED",
    )
    said = target.refused(wider, EVOLVE)
    assert "cannot alter type of a column used by a generated column" in said
    assert 'ALTER COLUMN "name" TYPE text' in said


def test_a_value_that_the_targets_enum_lacks_is_named(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    shape = columns("id integer, m text, c bigint")
    key, mood, cursor = shape.columns
    shape = replace(shape, columns=(key, replace(mood, target_type="public.mood"), cursor))
    target = Target(PostgresHarness(database, shape, FREEZE))
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
    rules = Rules(checks=(RowCheck("positive", "n > 0"),), reject_limit=1.0)
    target = Target(PostgresHarness(database, columns(BEFORE), rules))
    load(target.harness, (1, "a", -1, 1))
    shape = columns(BEFORE + ", x integer")
    target.harness.destination.prepare(shape, target.harness.watermark(), rules)
    target.harness.shape = shape
    load(target.harness, (2, "b", -1, 2, 7))
    rows = database.execute(f"SELECT row ->> 'x' FROM {target.harness.table}_rejected ORDER BY id")
    assert rows == [(None,), ("7",)]


def test_the_other_modes_evolve_too(database: Database) -> None:
    for mode in (Mode.DELETE_INSERT, Mode.REPLACE, Mode.APPEND):
        keyless = "" if mode is Mode.APPEND else "id"
        first = columns(BEFORE, key=keyless)
        target = loaded(database, first, (1, "a", 1, 1), rules=Rules(mode=mode))
        notes = target.load(columns(BEFORE + ", x text", key=keyless), (2, "b", 2, 2, "x"))
        assert target.rows("id, x")[-1] == (2, "x"), mode
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


class TestVersions:
    """Append with a key: the raw table changes, and its view with it."""

    @pytest.fixture
    def target(self, database: Database) -> Target:
        rules = Rules(mode=Mode.APPEND)
        return loaded(database, columns(BEFORE), (1, "a", 1, 1), rules=rules)

    def test_the_view_has_new_columns_and_those_that_went(self, target: Target) -> None:
        target.load(
            columns("id integer, x text, name text, n integer, c bigint"), (1, "x", "b", 1, 2)
        )
        assert target.rows("id, name, n, c, x") == [(1, "b", 1, 2, "x")]
        target.load(columns(WITHOUT_N), (2, "b", 2))
        assert target.rows("id, name, n, x") == [(1, "b", 1, "x"), (2, "b", None, None)]

    def test_a_view_is_widened_and_keeps_its_trimmings(self, target: Target) -> None:
        view, database = target.harness.table, target.harness.database
        role = f"reader_{target.harness.destination.relation.name}"
        database.execute(
            f"CREATE ROLE {role}",
            f"GRANT SELECT ON {view} TO {role} WITH GRANT OPTION",
            f"GRANT SELECT ON {view} TO PUBLIC",
            f"ALTER VIEW {view} SET (security_barrier = true)",
            f"COMMENT ON VIEW {view} IS 'the newest'",
        )
        look = (
            "SELECT relacl::text, reloptions, obj_description(oid, 'pg_class') FROM pg_class"
            f" WHERE oid = '{view}'::regclass"
        )
        before = database.execute(look)
        try:
            shape = columns("id integer, name text, n bigint, c bigint, x text")
            target.load(shape, (1, "a", 2**40, 2, "x"))
            assert target.rows("id, n, x") == [(1, 2**40, "x")]
            assert database.execute(look) == before
        finally:
            database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    def test_what_is_done_by_hand_is_in_the_view(self, target: Target) -> None:
        shape = columns(BEFORE + ", x text")
        assert "column x text is new" in target.refused(shape, FREEZE)
        target.harness.database.execute(f"ALTER TABLE {target.harness.physical} ADD x text")
        target.prepare(shape, FREEZE)
        load(target.harness, (1, "a", 1, 2, "x"))
        assert target.rows("id, x") == [(1, "x")]
        target.record(shape)
        target.harness.database.execute(
            f"ALTER TABLE {target.harness.physical} RENAME name TO title"
        )
        target.load(columns(RENAMED + ", x text"), (2, "b", 2, 2, "y"))
        assert target.rows("id, title") == [(1, "a"), (2, "b")]
        names = target.harness.database.execute(
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{target.harness.table}'::regclass"
        )
        assert ("name",) not in names

    def test_a_change_of_type_is_refused_and_made_by_what_is_said(self, target: Target) -> None:
        over = f"over_{target.harness.destination.relation.name}"
        database = target.harness.database
        database.execute(f"CREATE VIEW {over} AS SELECT n FROM {target.harness.table}")
        said = target.refused(columns("id integer, name text, n bigint, c bigint"), EVOLVE)
        assert "other objects depend on it" in said
        assert f"view public.{over} depends on view" in said
        database.execute(f"DROP VIEW {over}")
        target.load(columns(WITHOUT_N), (1, "a", 2))
        shape = columns("id integer, name text, n uuid, c bigint")
        said = target.refused(shape, EVOLVE)
        statements = re.search(r"DROP VIEW .*", said)
        assert statements is not None, said
        database.execute(*statements.group().splitlines()[0].split("; "))
        target.load(shape, (1, "b", UUID(int=1), 3))
        assert target.rows("id, n") == [(1, UUID(int=1))]


@pytest.mark.parametrize(
    ("mode", "refresh"),
    [
        ("append", False),
        ("merge", True),
        pytest.param("append", True, marks=pytest.mark.chaos),
        pytest.param("merge", False, marks=pytest.mark.chaos),
    ],
)
def test_a_first_load_that_was_cut_short_follows_its_source(
    make: Make, monkeypatch: pytest.MonkeyPatch, mode: str, refresh: bool
) -> None:
    project, place = make({**ORDERS, "mode": mode}, databases=2)
    place.source.execute(*CREATE, "INSERT INTO orders SELECT generate_series(1, 9)")
    monkeypatch.setattr(failpoints, "_armed", failpoints._parse("stage.write=raise"))
    monkeypatch.setattr(failpoints, "_passages", 0)
    with pytest.raises(Exception, match=r"stage\.write"):
        project.run("orders", full_refresh=refresh)
    monkeypatch.undo()
    place.source.execute("ALTER TABLE orders ADD extra text DEFAULT 'x'")
    project.run("orders")
    assert place.target.value("SELECT count(*) FROM raw.orders WHERE extra = 'x'") == 9
