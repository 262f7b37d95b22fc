"""What the commands make of groups: plan's choice per table, and names everywhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.commands import DONE, FAILED, USAGE, tidegate
from integration.orders import contents
from tidegate.ledger.watermarks import Watermarks
from tidegate.pipeline import plan as plan_module
from tidegate.pipeline.plan import plan_project
from tidegate.project import Project

SHOP = {"name": "shop", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
SINGLE = {
    "name": "single",
    "source": "shop:sales.single",
    "target": "warehouse:sales.single",
    "cursor": "updated_at",
}
STAMPED = "id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now()"
TABLES = (
    f"CREATE TABLE orders ({STAMPED})",
    "CREATE INDEX ON orders (updated_at)",
    f"CREATE TABLE items ({STAMPED})",
    "CREATE TABLE lists (code text PRIMARY KEY)",
    "CREATE TABLE notes (note text)",
    "CREATE VIEW v AS SELECT * FROM orders",
    "INSERT INTO orders SELECT n, '2026-01-01' FROM generate_series(1, 7) n",
    "INSERT INTO lists SELECT 'c' || n FROM generate_series(1, 3) n",
    "CREATE SCHEMA sales",
    f"CREATE TABLE sales.single ({STAMPED})",
)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def place(make_place: Any) -> Any:
    made = make_place(SHOP, SINGLE, databases=2)
    made.source.execute(*TABLES)
    return made


def point_elsewhere(place: Any) -> None:
    """Let the source of the project be one that does not answer."""
    file = place.folder / "tidegate.toml"
    before = f"shop = {json.dumps(place.source.conninfo)}"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, f"shop = {json.dumps(NOWHERE)}"))


def pretend_loaded(place: Any, *tables: str) -> None:
    """Watermarks as loads of these tables would have left them."""
    with place.open() as project:
        ledger = project.context.ledger("warehouse")
        ledger.ensure()
        with ledger.connect() as connection:
            for table in tables:
                Watermarks(ledger).ensure(connection, f"shop.shop.{table}", f"raw.{table}", None)
    place.target.execute(
        "UPDATE tidegate.etl_state SET version = 1, rows_synced = 0, declaration ="
        " json_build_object('source', replace(table_name, 'raw.', 'shop:public.'),"
        " 'cursor', NULL, 'key', json_build_array())"
    )


def test_plan_prints_one_line_per_table_and_what_is_left_out(place: Any) -> None:
    before = contents(place.source, place.target)
    done = tidegate(place.folder, "plan")
    assert done.code == DONE, done.said
    assert contents(place.source, place.target) == before
    lines = [line.split() for line in done.out.splitlines()]
    assert ["orders", "merge", "id", "updated_at", "7", "7", "exact"] in lines
    assert ["items", "merge", "id", "updated_at", "0", "nothing", "new", "exact", "1"] in lines
    assert ["lists", "replace", "code", "none", "3", "3", "exact"] in lines
    assert ["notes", "replace", "none", "none", "0", "0", "exact", "1"] in lines
    assert "shop: shop:public.* → warehouse:raw.{table}, 4 tables" in done.out
    assert "left out: public.v: a view" in done.out
    # The single sync is printed in full, the tables of the group are not.
    assert done.out.count("  reads ") == 0
    assert done.out.count("  moves ") == 1


def test_plan_prints_named_tables_and_all_with_verbose_in_full(place: Any) -> None:
    named = tidegate(place.folder, "plan", "shop.orders")
    assert named.code == DONE, named.said
    assert named.out.startswith("shop.orders\n")
    assert named.out.count("  moves ") == 1
    assert "4 tables" not in named.out
    assert "id (primary key, unique by an index)" in named.out
    verbose = tidegate(place.folder, "plan", "shop", "--verbose")
    assert verbose.out.count("  moves ") == 4
    assert "no column rises with every change, so the whole table is loaded" in verbose.out
    document = tidegate(place.folder, "plan", "--json").document
    assert [one["sync"] for one in document["plans"]] == [
        "shop.items",
        "shop.lists",
        "shop.notes",
        "shop.orders",
        "single",
    ]
    assert {one["group"] for one in document["plans"]} == {"shop", None}
    assert document["groups"][0]["left_out"][0]["table"] == "public.v"


def test_a_table_that_is_refused_does_not_keep_the_others_from_being_planned(place: Any) -> None:
    place.source.execute(f"CREATE TABLE {'x' * 63} (id int PRIMARY KEY)")
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text().replace("raw.{table}", "raw.{table}_copy"))
    done = tidegate(place.folder, "plan")
    assert done.code == USAGE
    assert "longer than 63 bytes" in done.err
    assert "orders" in done.out


def test_a_large_table_without_a_cursor_is_warned_of(
    place: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_module, "_LARGE_ROWS", 2)
    with Project.open(place.folder) as project:
        expanded = project.expanded(["shop"])
        found = plan_project(project.context, expanded.syncs, expanded.groups)
    large = {one.table: one.warnings for one in found.plans if one.is_large}
    assert list(large) == ["lists"]
    assert "loads all of about 3 rows" in large["lists"][0]
    from tidegate.cli.plan_groups import print_group

    print_group(found.groups[0], found.plans, verbose=False)
    assert "warning: lists: every run that finds a change" in capsys.readouterr().out


def test_a_group_that_cannot_be_listed_is_refused_beside_the_others(place: Any) -> None:
    file = place.folder / "tidegate.toml"
    more = '[sync.nothing]\nsource = "shop:public.zz*"\ntarget = "warehouse:zz.{table}"\n'
    file.write_text(file.read_text() + more)
    done = tidegate(place.folder, "plan")
    assert done.code == USAGE
    assert "nothing matches shop:public.zz*" in done.err
    assert "nothing: shop:public.zz* → warehouse:zz.{table}, 0 tables" in done.out
    assert "orders" in done.out


def test_status_shows_what_the_ledger_knows_when_the_source_is_down(place: Any) -> None:
    pretend_loaded(place, "orders", "lists")
    assert len(tidegate(place.folder, "status", "--json").document["syncs"]) == 5
    point_elsewhere(place)
    done = tidegate(place.folder, "status", "--json")
    assert done.code == DONE, done.said
    found = {one["sync"]: one for one in done.document["syncs"]}
    assert found.keys() == {"shop.lists", "shop.orders", "single"}
    assert found["shop.orders"]["target"] == "warehouse:raw.orders"
    assert found["shop.orders"]["source"] == "shop:public.orders"
    assert found["shop.orders"]["version"] == 1
    assert any("cannot connect" in text for text in found["shop.orders"]["unreachable"])
    assert tidegate(place.folder, "status", "--check").code == FAILED
    shown = tidegate(place.folder, "watermark", "show", "shop.orders", "--json")
    assert shown.code == DONE, shown.said
    assert shown.document["target"] == "warehouse:raw.orders"
    listed = tidegate(place.folder, "watermark", "list", "--json").document
    assert {one["sync"] for one in listed} == {"shop.lists", "shop.orders", "single"}


def test_status_of_a_group_that_never_ran_does_not_fail_without_its_source(place: Any) -> None:
    point_elsewhere(place)
    done = tidegate(place.folder, "status")
    assert done.code == DONE, done.said
    assert "unreachable: cannot connect" in done.out


def test_watermarks_of_tables_that_are_gone_are_listed_and_others_projects_are_not(
    place: Any,
) -> None:
    pretend_loaded(place, "orders", "dropped_since")
    place.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name) VALUES"
        " ('shop.eu.orders', 'raw.theirs')"
    )
    listed = tidegate(place.folder, "watermark", "list", "--json").document
    found = {one["sync"]: one["declared"] for one in listed}
    assert found["shop.orders"] is True
    assert found["shop.dropped_since"] is False
    assert "eu.orders" not in found


def test_removing_a_group_forgets_all_of_its_tables_and_nothing_else(place: Any) -> None:
    pretend_loaded(place, "orders", "lists", "dropped_since")
    place.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name) VALUES"
        " ('shop.single', 'sales.single'), ('shop.shopping.x', 'raw.x')"
    )
    asked = tidegate(place.folder, "remove", "shop")
    assert asked.code == USAGE
    assert "shop.dropped_since" in asked.out
    one = tidegate(place.folder, "remove", "shop.lists", "--yes")
    assert one.code == DONE, one.said
    removed = tidegate(place.folder, "remove", "shop", "--yes", "--json")
    assert removed.code == DONE, removed.said
    assert {one["sync"] for one in removed.document["removed"]} == {
        "shop.orders",
        "shop.dropped_since",
    }
    left = place.target.execute("SELECT pipeline_name FROM tidegate.etl_state ORDER BY 1")
    assert left == [("shop.shopping.x",), ("shop.single",)]


def test_marker_forget_names_the_table_of_the_group(place: Any) -> None:
    pretend_loaded(place, "orders")
    place.target.execute(
        "INSERT INTO tidegate.table_updates (update_id, target_table) VALUES ('u', 'raw.orders')",
        "INSERT INTO tidegate.watermark_log (pipeline_name, table_name, generation, version,"
        " update_id, moved_by, reason)"
        " VALUES ('shop.shop.orders', 'raw.orders', 0, 1, 'u', 'x', 'y')",
    )
    done = tidegate(place.folder, "marker", "forget", "warehouse:raw.orders", "u")
    assert done.code == DONE, done.said
    assert "tidegate watermark rewind shop.orders VALUE" in done.err


def test_doctor_looks_at_every_table_of_a_group(place: Any) -> None:
    for n in range(12):
        place.source.execute(f"CREATE TABLE more_{n} (id int PRIMARY KEY)")
    checks = tidegate(place.folder, "doctor", "--json").document["checks"]
    found = {check["name"]: check["found"] for check in checks}
    assert found["declarations"] == "17 syncs"
    assert found['connection "shop": sources'] == "17 may be read"
    point_elsewhere(place)
    done = tidegate(place.folder, "doctor", "--json")
    assert done.code == FAILED
    assert any(check["name"] == "declarations: shop" for check in done.document["checks"])


def test_verify_takes_groups_and_tables(place: Any) -> None:
    done = tidegate(place.folder, "verify", "shop", "--json")
    assert done.code == FAILED
    assert {one["sync"]: one["verdict"] for one in done.document} == dict.fromkeys(
        ("shop.items", "shop.lists", "shop.notes", "shop.orders"), "never ran"
    )
    wrong = tidegate(place.folder, "verify", "shop.ordres")
    assert wrong.code == USAGE
    assert "shop.orders" in wrong.err


def test_a_run_of_a_group_without_its_source_says_so_and_fails(place: Any) -> None:
    point_elsewhere(place)
    done = tidegate(place.folder, "run", "shop")
    assert done.code == FAILED
    assert "cannot connect" in done.err
