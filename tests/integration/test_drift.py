"""Drift at the destination: every kind of it, under evolve and under freeze."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from integration.conftest import Database
from integration.destination_conformance import load
from integration.postgres_harness import PostgresHarness, make_shape
from tidegate.destinations import drift
from tidegate.errors import DestinationError, DriftRefused, FenceLost
from tidegate.model.drift import record_columns
from tidegate.model.rules import Check, Drift, Mode, Rules
from tidegate.model.shape import Shape

BEFORE = "id integer, name text, n integer, c bigint"
EVOLVE, FREEZE = Rules(), Rules(drift=Drift.FREEZE)


def columns(text: str, *, not_null: str = "", key: str = "id") -> Shape:
    """A shape; `not_null` names the columns that are so."""
    shape = make_shape(text, key, "c", unique=True)
    marked = not_null.split()
    return replace(
        shape,
        columns=tuple(replace(one, not_null=one.name in marked) for one in shape.columns),
    )


@dataclass
class Target:
    """A target that was loaded once, and rows of another shape on their way to it."""

    harness: PostgresHarness

    def prepare(self, shape: Shape, rules: Rules | None = None, **options: Any) -> tuple[str, ...]:
        harness = self.harness
        rules = replace(rules or EVOLVE, mode=harness.rules.mode)
        notes = harness.destination.prepare(shape, harness.watermark(), rules, **options)
        harness.shape = shape
        return notes

    def load(self, shape: Shape, *rows: tuple[Any, ...], high: int = 20) -> tuple[str, ...]:
        """Prepare and load, and remember the columns as a real load does."""
        notes = self.prepare(shape)
        load(self.harness, *rows, high=high)
        self.record(shape)
        return notes

    def record(self, shape: Shape) -> None:
        with self.harness.database.connect() as connection:
            connection.execute(
                "UPDATE tidegate.etl_state SET declaration = %s WHERE table_name = %s",
                (psycopg.types.json.Jsonb({"columns": record_columns(shape)}), self.harness.table),
            )

    def refused(self, shape: Shape, rules: Rules, **options: Any) -> str:
        """The refusal; the target is as it was."""
        before = self.columns()
        with pytest.raises(DestinationError) as raised:
            self.prepare(shape, rules, **options)
        assert self.columns() == before
        return str(raised.value)

    def columns(self) -> dict[str, tuple[str, bool]]:
        """Type and NOT NULL of every column that the physical table has."""
        rows = self.harness.database.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE"
            f" attrelid = '{self.harness.physical}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        return {name: (kind, not_null) for name, kind, not_null in rows}

    def rows(self, names: str) -> list[tuple[Any, ...]]:
        return self.harness.database.execute(
            f"SELECT {names} FROM {self.harness.table} ORDER BY id"
        )

    def filenode(self) -> int:
        return int(
            self.harness.database.value(f"SELECT pg_relation_filenode('{self.harness.physical}')")
        )


def loaded(database: Database, shape: Shape, *rows: tuple[Any, ...], **options: Any) -> Target:
    """A target made for a shape and loaded with rows."""
    target = Target(PostgresHarness(database, shape, **options))
    load(target.harness, *rows, high=10)
    target.record(shape)
    return target


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


WIDENED = [
    ("character varying(10)", "character varying(50)", False),
    ("character varying(10)", "character varying", False),
    ("character varying(10)", "text", False),
    ("numeric(10,2)", "numeric(12,2)", False),
    ("numeric(10,2)", "numeric", False),
    ("timestamp(3) with time zone", "timestamp with time zone", False),
    ("timestamp(0) without time zone", "timestamp(3) without time zone", False),
    ("bit varying(4)", "bit varying(8)", False),
    ("numeric(10,2)", "numeric(14,4)", True),
    ("smallint", "integer", True),
    ("integer", "bigint", True),
    ("integer", "numeric", True),
    ("integer", "double precision", True),
    ("real", "double precision", True),
    ("character(4)", "character(8)", True),
    ("character(4)", "text", True),
    ("date", "timestamp without time zone", True),
]


@pytest.mark.parametrize(("old", "new", "rewrites"), WIDENED)
def test_a_widened_column_is_widened_in_the_target(
    database: Database, old: str, new: str, rewrites: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether Postgres writes the table anew is seen by its file; what we hold slow is that."""
    shapes = [columns(f"id integer, v {kind}, c bigint") for kind in (old, new)]
    shapes = [
        replace(
            one, columns=(one.columns[0], replace(one.columns[1], target_type=kind), one.columns[2])
        )
        for one, kind in zip(shapes, (old, new), strict=True)
    ]
    target = Target(PostgresHarness(database, shapes[0]))
    table = target.harness.table
    value = {"date": "2026-01-01", "timestamp": "2026-01-01 00:00:00+00"}.get(
        old.split("(")[0], "1"
    )
    database.execute(f"INSERT INTO {table} VALUES (1, '{value}', 1)")
    filenode = target.filenode()
    monkeypatch.setattr(drift, "SMALL_BYTES", -1)
    if rewrites:
        said = target.refused(shapes[1], EVOLVE)
        assert "while nobody can read it" in said
        assert f'ALTER COLUMN "v" TYPE {new}' in said
        monkeypatch.setattr(drift, "SMALL_BYTES", 16 * 1024 * 1024)
    assert f"column v was {old} and is {new} now" in target.refused(shapes[1], FREEZE)
    notes = target.prepare(shapes[1])
    assert notes == (f"column v becomes {new} in {table}",)
    assert target.columns()["v"] == (new, False)
    assert (target.filenode() != filenode) == rewrites
    assert target.prepare(shapes[1]) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {} ADD CHECK (name <> 'no')",
        "CREATE INDEX ON {} (id) WHERE name <> 'no'",
        "CREATE INDEX ON {} (lower(name))",
    ],
)
def test_widening_that_examines_every_row_counts_as_slow(
    database: Database, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = columns("id integer, name character varying(9), c bigint")
    target = loaded(database, shape, (1, "a", 1))
    database.execute(statement.format(target.harness.table))
    monkeypatch.setattr(drift, "SMALL_BYTES", 0)
    wider = columns("id integer, name text, c bigint")
    assert "while nobody can read it" in target.refused(wider, EVOLVE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("text", "integer"),
        ("integer", "text"),
        ("bigint", "double precision"),
        ("integer", "real"),
        ("timestamp without time zone", "timestamp with time zone"),
        ("date", "timestamp with time zone"),
        ("numeric(10,2)", "numeric(10,4)"),
        ("text", "jsonb"),
    ],
)
@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_an_incompatible_type_is_refused_with_both_types_and_a_way_out(
    database: Database, old: str, new: str, rules: Rules
) -> None:
    target = Target(PostgresHarness(database, columns(f"id integer, v {old}, c bigint")))
    said = target.refused(columns(f"id integer, v {new}, c bigint"), rules)
    assert f"column v was {old} and is {new} now" in said
    assert f'ALTER COLUMN "v" TYPE {new} USING "v"::{new}' in said
    assert "exclude_columns" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "integer"),
        ("text", "character varying(10)"),
        ("numeric(12,2)", "numeric(10,2)"),
        ("double precision", "real"),
    ],
)
@pytest.mark.parametrize("rules", [EVOLVE, FREEZE])
def test_a_narrowed_column_loads_into_the_wider_one(
    database: Database, old: str, new: str, rules: Rules
) -> None:
    target = Target(PostgresHarness(database, columns(f"id integer, v {old}, c bigint")))
    assert target.prepare(columns(f"id integer, v {new}, c bigint"), rules) == ()
    assert target.columns()["v"] == (old, False)


def test_a_change_beside_an_incompatible_one_is_not_made_alone(target: Target) -> None:
    said = target.refused(columns("id integer, name text, n text, c bigint, x integer"), EVOLVE)
    assert "column n was integer and is text now" in said


def test_a_target_that_cannot_take_the_rows_anyway_is_not_changed_first(target: Target) -> None:
    name = target.harness.destination.relation.name
    target.harness.database.execute(f"ALTER TABLE raw.{name} DROP CONSTRAINT {name}_pkey")
    assert "it has no unique index" in target.refused(columns(BEFORE + ", x integer"), EVOLVE)


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
        columns=(shape.columns[0], replace(shape.columns[1], target_type="mood"), shape.columns[2]),
    )
    target = Target(PostgresHarness(database, shape, rules))
    load(target.harness, (1, "good", 1), (2, None, 1))
    with pytest.raises(DriftRefused) as raised:
        load(target.harness, (3, "so'so", 2))
    assert "column m of the rows for raw.orders" in str(raised.value)
    assert "ALTER TYPE mood ADD VALUE 'so''so'" in str(raised.value)
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


class TestVersions:
    """Append with a key: the raw table changes, and its view with it."""

    @pytest.fixture
    def target(self, database: Database) -> Target:
        rules = Rules(mode=Mode.APPEND)
        return loaded(database, columns(BEFORE), (1, "a", 1, 1), rules=rules)

    def test_a_new_column_is_in_the_view_too(self, target: Target) -> None:
        target.load(
            columns("id integer, x text, name text, n integer, c bigint"), (1, "x", "b", 1, 2)
        )
        assert target.rows("id, name, n, c, x") == [(1, "b", 1, 2, "x")]

    def test_a_dropped_column_stays_in_the_view(self, target: Target) -> None:
        target.load(columns("id integer, name text, c bigint"), (2, "b", 2))
        assert target.rows("id, name, n") == [(1, "a", 1), (2, "b", None)]

    def test_a_widened_column_is_wider_in_the_view_which_keeps_its_trimmings(
        self, target: Target
    ) -> None:
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

    def test_a_column_added_by_hand_appears_in_the_view_under_freeze(self, target: Target) -> None:
        shape = columns(BEFORE + ", x text")
        assert "column x text is new" in target.refused(shape, FREEZE)
        target.harness.database.execute(f"ALTER TABLE {target.harness.physical} ADD x text")
        target.prepare(shape, FREEZE)
        load(target.harness, (1, "a", 1, 2, "x"))
        assert target.rows("id, x") == [(1, "x")]

    def test_a_column_renamed_by_hand_is_renamed_in_the_view(self, target: Target) -> None:
        target.harness.database.execute(
            f"ALTER TABLE {target.harness.physical} RENAME name TO title"
        )
        target.load(columns("id integer, title text, n integer, c bigint"), (2, "b", 2, 2))
        assert target.rows("id, title") == [(1, "a"), (2, "b")]
        assert "name" not in [
            row[0]
            for row in target.harness.database.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid ="
                f" '{target.harness.table}'::regclass"
            )
        ]

    def test_a_view_on_the_view_stops_a_change_of_type(self, target: Target) -> None:
        target.harness.database.execute(f"CREATE VIEW over AS SELECT n FROM {target.harness.table}")
        said = target.refused(columns("id integer, name text, n bigint, c bigint"), EVOLVE)
        assert "other objects depend on it" in said
        assert "view over depends on view" in said


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
