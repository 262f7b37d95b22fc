"""What the commands make of groups: a choice per table, names everywhere, dots in them included."""

from __future__ import annotations

import json

import pytest

from integration.commands import DONE, FAILED, USAGE
from integration.conftest import Make, MakePlace, Place
from integration.groups import SHOP, STAMPED
from integration.here import tidegate
from integration.orders import contents
from integration.queued import run_here
from tidegate.cli.sync.plan import print_group
from tidegate.core.errors import UsageError
from tidegate.ledger.watermarks import Watermarks
from tidegate.load import planner as plan_module
from tidegate.load.planner import plan_project
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.verify.report import RowReason

SINGLE = {
    "name": "single",
    "source": "shop:sales.single",
    "target": "warehouse:sales.single",
    "cursor": "updated_at",
}
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
    "CREATE SCHEMA far",
    f"CREATE TABLE far.{'x' * 63} (id int PRIMARY KEY)",
    *(f"CREATE TABLE far.more_{n} (id int PRIMARY KEY)" for n in range(12)),
)
FAR = {"name": "far", "source": "shop:far.*", "target": "warehouse:raw.{table}_copy"}
OURS = ("shop.items", "shop.lists", "shop.notes", "shop.orders")
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
def never_ran(places: MakePlace) -> Place:
    """A project that has loaded nothing; its tests write nothing either."""
    return filled(places(SHOP, SINGLE, databases=2))


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return filled(make_place(SHOP, SINGLE, databases=2))


def filled(place: Place) -> Place:
    place.source.execute(*TABLES)
    return place


def point_elsewhere(place: Place) -> None:
    """Let the source of the project be one that does not answer."""
    file = place.folder / "tidegate.toml"
    before = f"shop = {json.dumps(place.source.conninfo)}"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, f"shop = {json.dumps(NOWHERE)}"))


def pretend_loaded(place: Place, *tables: str) -> None:
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


def test_plan_prints_one_line_per_table_and_named_ones_in_full(never_ran: Place) -> None:
    before = contents(never_ran.source, never_ran.target)
    done = tidegate(never_ran.folder, "plan")
    assert done.code == DONE, done.said
    assert contents(never_ran.source, never_ran.target) == before
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

    named = tidegate(never_ran.folder, "plan", "shop.orders")
    assert named.code == DONE, named.said
    assert named.out.startswith("shop.orders\n")
    assert named.out.count("  moves ") == 1
    assert "4 tables" not in named.out
    assert "id (primary key, unique by an index)" in named.out
    verbose = tidegate(never_ran.folder, "plan", "shop", "--verbose")
    assert verbose.out.count("  moves ") == 4
    assert "no column rises with every change, so the whole table is loaded" in verbose.out
    document = tidegate(never_ran.folder, "plan", "--json").document
    assert [one["sync"] for one in document["plans"]] == [*OURS, "single"]
    assert {one["group"] for one in document["plans"]} == {"shop", None}
    assert document["groups"][0]["left_out"][0]["table"] == "public.v"


def test_the_rest_is_planned_beside_what_is_refused(places: MakePlace, never_ran: Place) -> None:
    nothing = {"name": "nothing", "source": "shop:public.zz*", "target": "warehouse:zz.{table}"}
    place = places(FAR, nothing, SINGLE, beside=never_ran)
    done = tidegate(place.folder, "plan")
    assert done.code == USAGE
    assert "longer than 63 bytes" in done.err
    assert "nothing matches shop:public.zz*" in done.err
    assert "nothing: shop:public.zz* → warehouse:zz.{table}, 0 tables" in done.out
    assert "more_11" in done.out
    assert "single" in done.out


def test_a_large_table_without_a_cursor_is_warned_of(
    never_ran: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_module, "_LARGE_ROWS", 2)
    with Project.open(never_ran.folder) as project:
        expanded = project.expanded(["shop"])
        found = plan_project(project.context, expanded.syncs, expanded.groups)
    large = {one.table: one.warnings for one in found.plans if one.is_large}
    assert list(large) == ["lists"]
    assert "loads all of about 3 rows" in large["lists"][0]
    print_group(found.groups[0], found.plans, verbose=False)
    assert "warning: lists: every run that finds a change" in capsys.readouterr().out


def test_verify_and_doctor_take_groups_and_tables(places: MakePlace, never_ran: Place) -> None:
    done = tidegate(never_ran.folder, "verify", "shop", "--json")
    assert done.code == FAILED
    assert {one["sync"]: one["verdict"] for one in done.document} == dict.fromkeys(
        OURS, "never ran"
    )
    wrong = tidegate(never_ran.folder, "verify", "shop.ordres")
    assert wrong.code == USAGE
    assert "shop.orders" in wrong.err
    place = places(SHOP, {**FAR, "target": "warehouse:far.{table}"}, SINGLE, beside=never_ran)
    checks = tidegate(place.folder, "doctor", "--json").document["checks"]
    found = {check["name"]: check["found"] for check in checks}
    assert found["declarations"] == "18 syncs"
    assert found['connection "shop": sources'] == "18 may be read"


def test_a_group_is_told_without_its_source(places: MakePlace, never_ran: Place) -> None:
    place = places(SHOP, SINGLE, beside=never_ran)
    point_elsewhere(place)
    done = tidegate(place.folder, "status")
    assert done.code == DONE, done.said
    assert "unreachable: cannot connect" in done.out
    done = tidegate(place.folder, "doctor", "--json")
    assert done.code == FAILED
    assert any(check["name"] == "declarations: shop" for check in done.document["checks"])
    done = tidegate(place.folder, "run", "shop")
    assert done.code == FAILED
    assert "cannot connect" in done.err


def test_status_shows_what_the_ledger_knows_when_the_source_is_down(place: Place) -> None:
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


def test_state_of_a_group_is_listed_and_removed_and_that_of_others_is_not(place: Place) -> None:
    pretend_loaded(place, "orders", "lists", "dropped_since")
    place.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name) VALUES"
        " ('shop.single', 'sales.single'), ('shop.shopping.x', 'raw.x'),"
        " ('shop.eu.orders', 'raw.theirs')",
        "INSERT INTO tidegate.table_updates (update_id, target_table) VALUES ('u', 'raw.orders')",
        "INSERT INTO tidegate.watermark_log (pipeline_name, table_name, generation, version,"
        " update_id, moved_by, reason)"
        " VALUES ('shop.shop.orders', 'raw.orders', 0, 1, 'u', 'x', 'y')",
    )
    listed = tidegate(place.folder, "watermark", "list", "--json").document
    found = {one["sync"]: one["declared"] for one in listed}
    assert found["shop.orders"] is True
    # A table that is gone is listed, one of another project is not.
    assert found["shop.dropped_since"] is False
    assert "eu.orders" not in found
    done = tidegate(place.folder, "marker", "forget", "warehouse:raw.orders", "u")
    assert done.code == DONE, done.said
    assert "tidegate watermark rewind shop.orders VALUE" in done.err

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
    assert left == [("shop.eu.orders",), ("shop.shopping.x",), ("shop.single",)]


APPENDED = {
    "name": "shop",
    "source": "shop:public.*",
    "target": "warehouse:raw.{table}",
    "mode": "append",
    "key": "id",
    "cursor": "updated_at",
}


def test_a_table_of_a_group_is_found_by_its_name_and_by_its_target(make: Make) -> None:
    project, place = make(APPENDED, databases=2)
    for table in ("orders", "items"):
        place.source.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text,"
            " updated_at timestamptz NOT NULL DEFAULT '2026-01-01')",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')",
        )
    for sync in project.expand():
        project.run(sync)
    assert project.why("warehouse:raw.items", id=2).reason is RowReason.EQUAL
    assert project.why("shop.orders", id=1).sync == "shop.orders"
    with pytest.raises(UsageError, match=r"no declared sync loads warehouse:raw\.nothing"):
        project.why("warehouse:raw.nothing", id=1)
    place.source.execute("UPDATE items SET name = 'c', updated_at = '2026-02-01'")
    for sync in project.expand():
        project.run(sync)
    done = run_here(place, "vacuum", "shop")
    assert done.code == DONE, done.said
    assert "shop.items: removed 2 superseded versions" in done.out
    assert "shop.orders: no superseded versions" in done.out


DOTTED = {"name": "b", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
SYNC = {
    "name": "x",
    "source": "shop:eu.x",
    "target": "warehouse:other.x",
    "cursor": "updated_at",
}


@pytest.fixture
def group(make_place: MakePlace, warm_spark: SparkSessions) -> Place:
    """Project a, whose group b has loaded its tables c and "d.e"."""
    place = make_place(DOTTED, name="a", databases=3)
    place.source.execute(
        f"CREATE TABLE c ({STAMPED})",
        f'CREATE TABLE "d.e" ({STAMPED})',
        "INSERT INTO c VALUES (1), (2)",
        "CREATE SCHEMA eu",
        f"CREATE TABLE eu.x ({STAMPED})",
        "INSERT INTO eu.x VALUES (1)",
        'INSERT INTO "d.e" VALUES (1)',
    )
    run_group(place, "b", warm_spark)
    return place


@pytest.fixture
def sync(group: Place, make_place: MakePlace, warm_spark: SparkSessions) -> Place:
    """Project a.b in the same databases, whose sync x has loaded a table."""
    place = make_place(SYNC, name="a.b", beside=group)
    run_group(place, "x", warm_spark)
    return place


def run_group(place: Place, name: str, spark: SparkSessions) -> int:
    report = place.open(spark).run_many(place.open().expand([name]))
    assert not report.failed, report
    return report.rows


def states(place: Place) -> set[tuple[str, ...]]:
    return set(place.target.execute("SELECT pipeline_name, table_name FROM tidegate.etl_state"))


C, D_E, OTHER = ("a.b.c", "raw.c"), ('a.b."d.e"', 'raw."d.e"'), ("a.b.x", "other.x")


def uninstall(place: Place, *what: str) -> list[list[str]]:
    """With whom it was found to be shared, ledger and control plane."""
    done = tidegate(place.folder, "db", "uninstall", *what, "--yes", "--json")
    assert done.code == DONE, done
    return [one["shared_with"] for one in done.document["found"]]


@pytest.mark.parametrize("whose", ["a", "a.b"])
def test_of_two_projects_only_the_ones_own_goes(
    group: Place, sync: Place, warm_spark: SparkSessions, whose: str
) -> None:
    assert states(group) == {C, D_E, OTHER}
    group.source.execute("INSERT INTO c VALUES (3)", "INSERT INTO eu.x VALUES (2)")
    gone, stays = (group, sync) if whose == "a" else (sync, group)
    other = "a.b" if whose == "a" else "a"
    assert uninstall(gone) == [[f"project {other}"]] * 2
    left = {OTHER} if whose == "a" else {C, D_E}
    assert states(group) == left
    log = group.target.execute("SELECT pipeline_name, table_name FROM tidegate.watermark_log")
    assert set(log) == left
    tables = {table for _, table in left}
    for column, ledger in (("target_table", "table_updates"), ("resource", "fences")):
        rows = group.target.execute(f"SELECT DISTINCT {column} FROM tidegate.{ledger}")
        assert {row[0] for row in rows} == tables, ledger
    projects = group.control.execute("SELECT DISTINCT project FROM tidegate_control.jobs")
    assert projects == [(other,)]
    # What stays goes on where it was, and goes with the last project.
    assert run_group(stays, "x" if whose == "a" else "b", warm_spark) == 1
    assert uninstall(stays) == [[], []]
    for database, schema in ((group.target, "tidegate"), (group.control, "tidegate_control")):
        assert database.value(f"SELECT to_regnamespace('{schema}')") is None


def test_removing_a_group_leaves_the_sync_of_a_project_that_is_named_like_it(
    group: Place, sync: Place
) -> None:
    done = tidegate(group.folder, "remove", "b", "--yes", "--json")
    assert done.code == DONE, done
    assert {one["target"] for one in done.document["removed"]} == {
        "warehouse:raw.c",
        'warehouse:raw."d.e"',
    }
    assert states(group) == {OTHER}
    again = tidegate(group.folder, "remove", "b.x", "--yes", "--json")
    assert (again.code, again.document["removed"]) == (DONE, [])


def test_a_declared_group_is_known_by_its_targets_where_no_job_is_left(group: Place) -> None:
    group.control.execute(
        "DELETE FROM tidegate_control.jobs",
        "INSERT INTO tidegate_control.cursor_observations VALUES ('a.b.c', now(), '1'),"
        " ('a.b.\"d.e\"', now(), '1'), ('a.x.c', now(), '1')",
    )
    group.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name) VALUES ('a.b.x', 'other.x')"
    )
    assert uninstall(group, "warehouse") == [["project a.b"]]
    assert states(group) == {OTHER}
    # Observations of a group go with its project, and another's stay.
    assert uninstall(group, "control") == [["project a.x"]]
    left = group.control.execute("SELECT pipeline FROM tidegate_control.cursor_observations")
    assert left == [("a.x.c",)]
