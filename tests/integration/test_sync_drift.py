"""Drift from end to end: the source changes, `plan` tells, a run follows or refuses."""

from __future__ import annotations

import psycopg
import pytest

from integration.conftest import MakeProject, Place
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS, contents, plan_all, plan_one
from tidegate.core.errors import BusyError, DeclarationError, DriftRefused
from tidegate.project import Project

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
