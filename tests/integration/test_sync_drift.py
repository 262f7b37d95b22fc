"""Drift from end to end: the source changes, `plan` tells, a run follows or refuses."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from integration.commands import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents, plan_all, plan_one
from tidegate.errors import BusyError, DeclarationError, DriftRefused
from tidegate.project import Project

TOUCH = "UPDATE orders SET updated_at = now() WHERE id <= 2"


def target_columns(place: Any) -> dict[str, str]:
    rows = place.target.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'raw.orders'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(rows)


@pytest.fixture
def shop(make_project: Any) -> tuple[Project, Any]:
    """A project that has loaded its orders once, on two databases."""
    project, place = make_project(ORDERS, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    return project, place


def test_the_target_follows_its_source_step_by_step(shop: tuple[Project, Any]) -> None:
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


def test_freeze_refuses_in_plan_and_run_and_loads_nothing(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "drift": "freeze"}, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("ALTER TABLE orders ADD note text", TOUCH)
    before = target_columns(place)
    (refusal,) = plan_all(place.open()).refusals
    assert refusal.kind == "DriftRefused"
    with pytest.raises(DriftRefused, match="column note text is new"):
        project.run("orders")
    assert target_columns(place) == before
    assert project.watermark("orders").value == "2026-01-01 00:10:00+00"
    left_out = place.folder / "tidegate.toml"
    left_out.write_text(left_out.read_text() + 'exclude_columns = ["note"]\n')
    with place.open(project.context.spark) as opened:
        assert opened.run("orders").rows == 2


def test_a_changed_primary_key_is_refused_with_the_way_out(shop: tuple[Project, Any]) -> None:
    project, place = shop
    place.source.execute(
        "ALTER TABLE orders ADD region int NOT NULL DEFAULT 1, DROP CONSTRAINT orders_pkey,"
        " ADD PRIMARY KEY (region, id)",
        TOUCH,
    )
    before = target_columns(place)
    with pytest.raises(DeclarationError) as raised:
        project.run("orders")
    assert "its key was (id) and is now (region, id)" in str(raised.value)
    assert "tidegate run orders --full-refresh" in str(raised.value)
    assert target_columns(place) == before


def test_a_locked_target_is_busy_and_a_later_run_works(shop: tuple[Project, Any]) -> None:
    project, place = shop
    place.source.execute("ALTER TABLE orders ADD note text", TOUCH)
    with psycopg.connect(place.target.conninfo, application_name="long report") as reader:
        reader.execute("SELECT FROM raw.orders")
        with pytest.raises(BusyError, match="long report"):
            project.run("orders")
        reader.rollback()
    assert "note" not in target_columns(place)
    assert project.run("orders").rows == 2
    assert "note" in target_columns(place)


def test_a_transformation_that_gives_a_new_column_evolves_the_target(make_project: Any) -> None:
    text = (
        "import tidegate as tg\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders',"
        " cursor='updated_at', drift='evolve')\n"
        "def orders(df):\n"
        "    return df{}\n"
    )
    project, place = make_project(databases=2, pipelines=text.format(""))
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    file = place.folder / "pipelines.py"
    file.write_text(text.format(".withColumn('twice', df.total * 2).drop('total')"))
    place.source.execute(TOUCH)
    with place.open(project.context.spark) as opened:
        report = opened.run("orders")
    assert "column twice" in report.outcome.notes[0]
    rows = place.target.execute("SELECT id, total, twice FROM raw.orders ORDER BY id LIMIT 3")
    assert [(n, int(total), twice and int(twice)) for n, total, twice in rows] == [
        (1, 1, 2),
        (2, 2, 4),
        (3, 3, None),
    ]
