"""Types that change, widened or refused; and drift from end to end."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from integration.conftest import Database, MakeProject, Place
from integration.drifted import BEFORE, EVOLVE, FREEZE, Target, columns, loaded
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents, plan_all, plan_one
from integration.postgres_harness import PostgresHarness
from integration.postgres_harness import shared as database
from tidegate.core.errors import BusyError, DeclarationError, DriftRefused
from tidegate.core.shape import Shape
from tidegate.load.targets.postgres import drift
from tidegate.project import Project

__all__ = ["database"]
SLOW = "while nobody can read it"
IN_PLACE = [
    ("character varying(10)", "character varying(50)"),
    ("character varying(10)", "character varying"),
    ("character varying(10)", "text"),
    ("numeric(10,2)", "numeric(12,2)"),
    ("numeric(10,2)", "numeric"),
    ("timestamp(3) with time zone", "timestamp with time zone"),
    ("timestamp(0) without time zone", "timestamp(3) without time zone"),
    ("bit varying(4)", "bit varying(8)"),
]
WRITTEN_ANEW = [
    ("numeric(10,2)", "numeric(14,4)"),
    ("smallint", "integer"),
    ("integer", "bigint"),
    ("integer", "numeric"),
    ("integer", "double precision"),
    ("real", "double precision"),
    ("character(4)", "character(8)"),
    ("character(4)", "text"),
    ("date", "timestamp without time zone"),
]
Pairs = list[tuple[str, str]]


def one_column(kind: str) -> Shape:
    return columns(f"id integer, v {kind}, c bigint")


def shape_of(kinds: list[str]) -> Shape:
    """A column for each of these types: v0, v1 and so on."""
    shape = columns("id integer, c bigint")
    typed = [
        replace(shape.columns[0], name=f"v{n}", target_type=kind, staged_type=kind)
        for n, kind in enumerate(kinds)
    ]
    return replace(shape, columns=(*shape.columns, *typed))


def changing(database: Database, pairs: Pairs) -> tuple[Target, Shape]:
    """A target of the old types with a row in it, and what is to become of it."""
    target = Target(PostgresHarness(database, shape_of([old for old, _ in pairs])))
    database.execute(f"INSERT INTO {target.harness.table} (id, c) VALUES (1, 1)")
    return target, shape_of([new for _, new in pairs])


def assert_told(said: str, pairs: Pairs) -> None:
    for n, (old, new) in enumerate(pairs):
        assert f"column v{n} was {old} and is {new} now" in said


def test_widened_columns_are_widened_in_the_target(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether Postgres writes the table anew is seen by its file; what we hold slow is that."""
    monkeypatch.setattr(drift, "SMALL_BYTES", -1)
    target, wider = changing(database, IN_PLACE)
    filenode = target.filenode()
    assert_told(target.refused(wider, FREEZE), IN_PLACE)
    notes = [f"column v{n} becomes {new} in" for n, (_, new) in enumerate(IN_PLACE)]
    assert [note.rpartition(" ")[0] for note in target.prepare(wider)] == notes
    for n, (_, new) in enumerate(IN_PLACE):
        assert target.columns()[f"v{n}"] == (new, False)
    assert target.filenode() == filenode
    assert target.prepare(wider) == ()

    target, wider = changing(database, WRITTEN_ANEW)
    said = target.refused(wider, EVOLVE)
    assert SLOW in said
    for n, (_, new) in enumerate(WRITTEN_ANEW):
        assert f'ALTER COLUMN "v{n}" TYPE {new}' in said
    assert_told(target.refused(wider, FREEZE), WRITTEN_ANEW)
    monkeypatch.setattr(drift, "SMALL_BYTES", 16 * 1024 * 1024)
    kinds = [old for old, _ in WRITTEN_ANEW]
    for n, (_, new) in enumerate(WRITTEN_ANEW):
        filenode = target.filenode()
        kinds[n] = new
        note = f"column v{n} becomes {new} in {target.harness.table}"
        assert target.prepare(shape_of(kinds)) == (note,)
        assert target.columns()[f"v{n}"] == (new, False)
        assert target.filenode() != filenode, new


def test_widening_that_examines_every_row_counts_as_slow(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = loaded(database, one_column("character varying(9)"), (1, "a", 1))
    monkeypatch.setattr(drift, "SMALL_BYTES", 0)
    table, wider = target.harness.table, one_column("text")
    for harm, end in (
        (f"ALTER TABLE {table} ADD CONSTRAINT no CHECK (v <> 'no')", "DROP CONSTRAINT no"),
        (f"CREATE INDEX partly ON {table} (id) WHERE v <> 'no'", "partly"),
        (f"CREATE INDEX lowered ON {table} (lower(v))", "lowered"),
    ):
        database.execute(harm)
        assert SLOW in target.refused(wider, EVOLVE)
        drop = f"ALTER TABLE {table} {end}" if " " in end else f"DROP INDEX raw.{end}"
        database.execute(drop)
    assert target.prepare(wider) != ()


def test_an_incompatible_type_is_refused_with_a_way_out(database: Database) -> None:
    pairs = [
        ("text", "integer"),
        ("integer", "text"),
        ("bigint", "double precision"),
        ("integer", "real"),
        ("numeric(10,2)", "numeric(10,4)"),
        ("text", "jsonb"),
    ]
    target, after = changing(database, pairs)
    for rules in (EVOLVE, FREEZE):
        said = target.refused(after, rules)
        assert_told(said, pairs)
        for n, (_, new) in enumerate(pairs):
            assert f'ALTER COLUMN "v{n}" TYPE {new} USING "v{n}"::{new}' in said
        assert "exclude_columns" in said


def test_a_zone_that_nobody_declared_is_not_assumed(database: Database) -> None:
    """Whether the column changed since the last load, or the target was made otherwise."""
    moment, no_zone = "timestamp with time zone", "timestamp without time zone"
    pairs = [
        (no_zone, moment),
        ("date", moment),
        (moment, no_zone),
        ("timestamp(3) with time zone", no_zone),
        (moment, "date"),
        ("time with time zone", "time without time zone"),
    ]
    target, after = changing(database, pairs)

    def assert_asked(said: str) -> None:
        for n, (old, new) in enumerate(pairs):
            value = f'"v{n}"::timestamp' if old == "date" else f'"v{n}"'
            using = f"({value} AT TIME ZONE '…')::{new}"
            assert f'ALTER COLUMN "v{n}" TYPE {new} USING {using}' in said

    for rules in (EVOLVE, FREEZE):
        said = target.refused(after, rules)
        assert_told(said, pairs)
        assert_asked(said)
    target.record(after)
    said = target.refused(after, EVOLVE)
    assert_asked(said)
    for n, (old, new) in enumerate(pairs):
        assert f"its column v{n} is {old}, the rows have {new}, and no time zone" in said


def test_a_narrowed_column_loads_into_the_wider_one(database: Database) -> None:
    pairs = [
        ("bigint", "integer"),
        ("text", "character varying(10)"),
        ("numeric(12,2)", "numeric(10,2)"),
        ("double precision", "real"),
    ]
    target, narrower = changing(database, pairs)
    before = target.columns()
    for rules in (EVOLVE, FREEZE):
        assert target.prepare(narrower, rules) == ()
        assert target.columns() == before


def test_a_change_that_would_not_help_is_not_made(database: Database) -> None:
    target = loaded(database, columns(BEFORE), (1, "a", 1, 1))
    # Beside one that is incompatible,
    said = target.refused(columns("id integer, name text, n text, c bigint, x integer"), EVOLVE)
    assert "column n was integer and is text now" in said
    # or where the target cannot take the rows anyway.
    name = target.harness.destination.relation.name
    database.execute(f"ALTER TABLE raw.{name} DROP CONSTRAINT {name}_pkey")
    assert "it has no unique index" in target.refused(columns(BEFORE + ", x integer"), EVOLVE)


def test_a_type_that_the_values_do_not_fit_is_changed_without_them(database: Database) -> None:
    target = loaded(database, one_column("text"), (1, "x", 1))
    shape = one_column("integer")
    said = target.refused(shape, EVOLVE)
    assert "USING NULL" in said
    database.execute(said[said.index("ALTER TABLE") :].partition(" (or")[0])
    target.load(shape, (1, 7, 2))
    assert target.rows("id, v") == [(1, 7)]


TOUCH = "UPDATE orders SET updated_at = now() WHERE id <= 2"


def target_columns(place: Place) -> dict[str, str]:
    rows = place.target.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'raw.orders'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(rows)


@pytest.fixture
def shop(make_project: MakeProject) -> tuple[Project, Place]:
    """A project that has loaded its orders once, on two databases."""
    project, place = make_project(ORDERS, databases=2, worker={"lock_timeout": "200ms"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


def test_the_target_follows_its_source_step_by_step(shop: tuple[Project, Place]) -> None:
    project, place = shop
    place.source.execute(
        "ALTER TABLE orders ADD note text DEFAULT 'all', ALTER total TYPE numeric(12,2)", TOUCH
    )
    before = contents(place.target)
    plan = plan_one(place.open())
    assert contents(place.target) == before
    assert plan.target_table.alter == (
        'ALTER TABLE "raw"."orders" ALTER COLUMN "total" TYPE numeric(12,2), '
        'ADD COLUMN IF NOT EXISTS "note" text',
    )
    assert any("column note text is new and is added to raw.orders" in w for w in plan.warnings)
    said = tidegate(place.folder, "plan", "orders").out
    assert "target     exists; before the next load it is changed by\n" in said
    assert 'ADD COLUMN IF NOT EXISTS "note" text' in said
    report = project.run("orders")
    assert report.rows == 2
    assert report.outcome.notes == list(plan.target_table.notes)
    assert target_columns(place)["total"] == "numeric(12,2)"
    rows = place.target.execute("SELECT id, note FROM raw.orders ORDER BY id LIMIT 3")
    assert rows == [(1, "all"), (2, "all"), (3, None)]
    assert plan_one(place.open()).target_table.alter == ()

    place.source.execute("ALTER TABLE orders DROP COLUMN total", TOUCH)
    (gone,) = plan_one(place.open()).target_table.notes
    assert "column total is gone from the source" in gone
    assert project.run("orders").outcome.notes == [gone]
    assert place.target.value("SELECT count(total) FROM raw.orders") == 10

    report = project.run("orders", full_refresh=True)
    assert report.outcome.notes == []
    assert place.target.value("SELECT count(*) FROM raw.orders WHERE note = 'all'") == 10


def test_freeze_refuses_in_plan_and_run_and_loads_nothing(shop: tuple[Project, Place]) -> None:
    project, place = shop
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text().rstrip() + '\ndrift = "freeze"\n')
    place.source.execute("ALTER TABLE orders ADD note text", TOUCH)
    before = target_columns(place)
    (refusal,) = plan_all(place.open()).refusals
    assert refusal.kind == "DriftRefused"
    frozen = place.open(project.context.spark)
    with pytest.raises(DriftRefused, match="column note text is new"):
        frozen.run("orders")
    assert target_columns(place) == before
    assert project.watermark("orders").value == "2026-01-01 00:10:00+00"
    file.write_text(file.read_text() + 'exclude_columns = ["note"]\n')
    with place.open(project.context.spark) as opened:
        assert opened.run("orders").rows == 2


def test_a_locked_target_is_busy_and_a_changed_key_refused(shop: tuple[Project, Place]) -> None:
    project, place = shop
    place.source.execute("ALTER TABLE orders ADD note text", TOUCH)
    with psycopg.connect(place.target.conninfo, application_name="long report") as reader:
        reader.execute("SELECT FROM raw.orders")
        with pytest.raises(BusyError, match="long report"):
            project.run("orders")
        reader.rollback()
    assert "note" not in target_columns(place)
    assert project.run("orders").rows == 2
    before = target_columns(place)
    assert "note" in before
    place.source.execute(
        "ALTER TABLE orders ADD region int NOT NULL DEFAULT 1, DROP CONSTRAINT orders_pkey,"
        " ADD PRIMARY KEY (region, id)",
        TOUCH,
    )
    with pytest.raises(DeclarationError) as raised:
        project.run("orders")
    assert "its key was (id) and is now (region, id)" in str(raised.value)
    assert "tidegate run orders --full-refresh" in str(raised.value)
    assert target_columns(place) == before
