"""Columns that change their type: widened where that is safe, refused where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.conftest import Database
from integration.drifted import BEFORE, EVOLVE, FREEZE, Target, columns, loaded
from integration.postgres_harness import PostgresHarness
from tidegate.destinations import drift
from tidegate.model.rules import Rules


@pytest.fixture
def target(database: Database) -> Target:
    return loaded(database, columns(BEFORE), (1, "a", 1, 1), (2, "b", 2, 1))


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


MOMENT, NO_ZONE = "timestamp with time zone", "timestamp without time zone"


def test_a_zone_that_nobody_declared_is_not_assumed(database: Database) -> None:
    """Whether the column changed since the last load, or the target was made otherwise."""
    for old, new, using in [
        (NO_ZONE, MOMENT, f"(\"v\" AT TIME ZONE '…')::{MOMENT}"),
        ("date", MOMENT, f"(\"v\"::timestamp AT TIME ZONE '…')::{MOMENT}"),
        (MOMENT, NO_ZONE, f"(\"v\" AT TIME ZONE '…')::{NO_ZONE}"),
        (f"timestamp(3){MOMENT[9:]}", NO_ZONE, f"(\"v\" AT TIME ZONE '…')::{NO_ZONE}"),
        (MOMENT, "date", "(\"v\" AT TIME ZONE '…')::date"),
        (f"time{MOMENT[9:]}", f"time{NO_ZONE[9:]}", f"(\"v\" AT TIME ZONE '…')::time{NO_ZONE[9:]}"),
    ]:
        before, after = (columns(f"id integer, v {kind}, c bigint") for kind in (old, new))
        target = Target(PostgresHarness(database, before))
        for rules in (EVOLVE, FREEZE):
            said = target.refused(after, rules)
            assert f"column v was {old} and is {new} now" in said
            assert f'ALTER COLUMN "v" TYPE {new} USING {using}' in said
        target.record(after)
        said = target.refused(after, EVOLVE)
        assert f"its column v is {old}, the rows have {new}, and no time zone is declared" in said
        assert f'ALTER COLUMN "v" TYPE {new} USING {using}' in said


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


def test_a_type_that_the_values_do_not_fit_is_changed_without_them(database: Database) -> None:
    target = loaded(database, columns("id integer, n text, c bigint"), (1, "x", 1))
    shape = columns("id integer, n integer, c bigint")
    said = target.refused(shape, EVOLVE)
    assert "USING NULL" in said
    database.execute(said[said.index("ALTER TABLE") :].partition(" (or")[0])
    target.load(shape, (1, 7, 2))
    assert target.rows("id, n") == [(1, 7)]
