"""Commands that look at a lake, or at what is recorded of it: none of them starts Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from integration.filled_lakes import (
    ORDERS,
    fill_table,
    lake_place,
    open_table,
    orders,
    schema_of,
    table_of,
)
from integration.orders import CREATE, FILL
from tidegate.ledger.intents import Intent, Intents
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.model.lake import UPDATE_ID, branch_name
from tidegate.model.relation import Endpoint
from tidegate.project import Project
from tidegate.runtime.hold import hold_table

TARGET = "lake:raw.orders"
DEAD = "d" * 32
REST = 'type = "iceberg"\ncatalog = "rest"\nuri = "http://127.0.0.1:1"'


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """Five of ten orders are in the lake, and the sync has adopted them."""
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    fill_table(place, orders(range(1, 6)))
    done = tidegate(place.folder, "adopt", "orders", "--from-target-max")
    assert done.code == DONE, done
    return place


def ledger_rows(place: Place, table: str) -> int:
    return int(place.control.value(f"SELECT count(*) FROM {schema_of(place)}.{table}"))


def note(place: Place, update_id: str, move: dict[str, Any] | None = None) -> None:
    """As an attempt that was killed before it could say how its publish ended."""
    context = place.open().context
    with context.databases.connect("lake") as connection:
        Intents(context.ledger("lake")).note(
            connection, "raw.orders", Intent(update_id, DEAD, 1, None, 7, move)
        )


def stage(place: Place, attempt_id: str, *, adopted: bool = False) -> Path:
    """A folder of staged files, as an attempt leaves it."""
    context = place.open().context
    location = table_of(place).location
    name = f"tidegate-{attempt_id}-1"
    folders = StagedFolders(context.ledger("lake"))
    with context.databases.connect("lake") as connection:
        folders.note(connection, "raw.orders", StagedFolder(name, attempt_id, location))
        if adopted:
            folders.adopt(connection, [name])
    folder = Path(location.removeprefix("file://")) / "data" / name
    folder.mkdir(parents=True)
    (folder / "one.parquet").write_text("staged")
    return folder


def test_many_who_make_the_ledger_of_a_lake_at_once_all_find_it_made(
    make_place: MakePlace,
) -> None:
    for _ in range(3):
        place = lake_place(make_place)
        projects = [place.open() for _ in range(8)]
        for project in projects:
            project.context.databases.connect("lake").close()
        start = threading.Barrier(len(projects))

        def make(project: Project, start: threading.Barrier = start) -> None:
            start.wait()
            project.context.ledger("lake").ensure()

        with ThreadPoolExecutor(len(projects)) as pool:
            for done in [pool.submit(make, project) for project in projects]:
                done.result()
        assert ledger_rows(place, "iceberg_tables") == 0


def test_watermarks_are_listed_and_moved(place: Place) -> None:
    (found,) = tidegate(place.folder, "watermark", "list", "--json").document
    assert found["target"] == TARGET
    reason = ("--reason", "again")
    back = tidegate(place.folder, "watermark", "rewind", "orders", "2026-01-01 00:02+00", *reason)
    assert back.code == DONE, back
    on = tidegate(place.folder, "watermark", "set", "orders", "2026-01-01 00:03+00", *reason)
    assert on.code == DONE, on
    shown = tidegate(place.folder, "watermark", "show", "orders")
    assert "2026-01-01 00:03:00+00" in shown.out
    assert place.open().watermark("orders").get().generation == 1


def test_markers_are_touched_listed_and_forgotten(place: Place) -> None:
    project = place.open()
    marker = project.marker(TARGET, update_id="x-1")
    assert marker.exists() is False
    with project.connect("lake") as connection, connection.transaction():
        assert marker.touch(connection) is True
    assert marker.exists() is True
    (row,) = tidegate(place.folder, "marker", "list", "lake", "--json").document
    assert (row["connection"], row["table"], row["update_id"]) == ("lake", "raw.orders", "x-1")
    done = tidegate(place.folder, "marker", "forget", TARGET, "x-1")
    assert (done.code, done.err) == (DONE, "")
    assert marker.exists() is False
    assert tidegate(place.folder, "marker", "forget", TARGET, "x-1").code == USAGE


def test_a_marker_table_of_luigi_beside_the_control_plane_is_not_the_lakes(place: Place) -> None:
    """There `raw.orders` is a table of another database."""
    schema = schema_of(place)
    place.control.execute(
        "CREATE TABLE table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('x-1', 'raw.orders')",
        f"DROP TABLE {schema}.table_updates",
    )
    assert place.open().marker(TARGET, update_id="x-1").exists() is False
    assert tidegate(place.folder, "marker", "touch", TARGET, "x-1").code == DONE
    assert ledger_rows(place, "table_updates") == 1


def test_a_load_that_is_in_and_not_recorded_counts_as_in(place: Place) -> None:
    marker = place.open().marker(TARGET, update_id="x-1")
    note(place, "x-1")
    assert marker.exists() is False
    open_table(place).append(orders([6]), snapshot_properties={UPDATE_ID: "x-1"})
    assert marker.exists() is True
    done = tidegate(place.folder, "marker", "forget", TARGET, "x-1")
    assert done.code == DONE
    assert "itself says that x-1 is in" in done.err
    assert ledger_rows(place, "intents") == 0


def test_where_the_table_cannot_tell_a_person_says_whether_a_load_is_in(place: Place) -> None:
    before = place.open().watermark("orders").get()
    move = {
        "pipeline": "shop.orders",
        "generation": before.generation,
        "version": before.version,
        "value": "2026-01-01 00:06:00+00",
        "position": None,
        "rows": 1,
        "rows_synced": 6,
        "cursor_type": "timestamp with time zone",
        "moved_by": "a run",
        "kind": "range",
        "declaration": None,
    }
    note(place, "load-6", move)
    done = tidegate(place.folder, "marker", "touch", TARGET, "load-6", "--json")
    assert done.document == {"update_id": "load-6", "target": TARGET, "recorded": True}
    assert place.open().watermark("orders").value == "2026-01-01 00:06:00+00"
    assert ledger_rows(place, "intents") == 0
    again = tidegate(place.folder, "marker", "touch", TARGET, "load-6")
    assert "was recorded before" in again.out


def test_removing_a_sync_forgets_all_of_it_and_leaves_the_table(place: Place) -> None:
    note(place, "load-6", {"pipeline": "shop.orders"})
    note(place, "another-1")
    staged, own = stage(place, DEAD), stage(place, "e" * 32, adopted=True)
    open_table(place).manage_snapshots().create_branch(
        table_of(place).main, branch_name("f" * 32)
    ).commit()
    branched = stage(place, "f" * 32)
    snapshot = table_of(place).main
    done = tidegate(place.folder, "remove", "orders", "--yes")
    assert done.code == DONE, done
    assert "the table raw.orders stays" in done.out
    assert f"branch {branch_name('f' * 32)} stays until the next run into this table" in done.out
    assert [ledger_rows(place, name) for name in ("etl_state", "watermark_log", "fences")] == [
        0
    ] * 3
    assert place.control.execute(f"SELECT update_id FROM {schema_of(place)}.intents") == [
        ("another-1",)
    ]
    # Files that may be the table's own are never touched; a branch is noted until it is dropped.
    assert (staged.exists(), own.exists(), branched.exists()) == (False, True, False)
    assert place.control.execute(f"SELECT attempt_id FROM {schema_of(place)}.staged_folders") == [
        ("f" * 32,)
    ]
    assert table_of(place).main == snapshot
    assert table_of(place).rows() == 5
    assert "nothing is recorded" in tidegate(place.folder, "remove", "orders", "--yes").out


def test_a_lakes_table_is_never_dropped(place: Place) -> None:
    done = tidegate(place.folder, "remove", "orders", "--yes", "--drop-target")
    assert done.code == USAGE
    assert "is a table of a lake, which Tidegate never drops" in done.err
    assert ledger_rows(place, "etl_state") == 1


def test_a_sync_that_is_no_longer_declared_is_found_in_the_lake(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    text = file.read_text()
    head, tail = text.index("[sync.orders]"), text.index("[connections.lake]")
    file.write_text(text[:head] + text[tail:])
    done = tidegate(place.folder, "remove", "orders", "--yes", "--json")
    assert done.code == DONE, done
    assert [one["target"] for one in done.document["removed"]] == [TARGET]
    assert ledger_rows(place, "etl_state") == 0


def test_what_is_at_work_is_not_removed(place: Place) -> None:
    with hold_table(
        place.open().context,
        Endpoint.parse(TARGET),
        {"kind": "sync", "name": "orders"},
        result={},
        command="tidegate test",
    ):
        assert tidegate(place.folder, "remove", "orders", "--yes").code == BUSY


def test_uninstalling_leaves_the_catalog_and_says_why(place: Place) -> None:
    staged = stage(place, DEAD)
    shown = tidegate(place.folder, "db", "uninstall", "--dry-run")
    assert shown.code == DONE, shown
    schema = schema_of(place)
    assert f"table {schema}.etl_state, 1 rows" in shown.out
    assert f"table {schema}.iceberg_tables (the lake's catalog)" in shown.out
    assert "the only way to the lake's tables, so it is never removed" in shown.out
    done = tidegate(place.folder, "db", "uninstall", "--yes", "--json")
    assert done.code == DONE, done
    (lake,) = [one for one in done.document["found"] if one["connection"] == "lake"]
    assert lake["schema"] == schema
    assert all(text.endswith("(the lake's catalog)") for text in lake["kept"])
    left = place.control.execute(
        f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1"
    )
    assert left == [("iceberg_namespace_properties",), ("iceberg_tables",)]
    assert table_of(place).rows() == 5
    assert not staged.exists()
    assert "nothing in these databases" in tidegate(place.folder, "db", "uninstall", "--yes").out
    # What was removed comes back with the next use, around the catalog that stayed.
    done = tidegate(place.folder, "adopt", "orders", "--from-target-max")
    assert done.code == DONE, done


def test_of_a_lake_behind_another_catalog_all_is_uninstalled(make_place: MakePlace) -> None:
    place = lake_place(make_place, lake=REST)
    place.open().context.ledger("lake").ensure()
    schema = schema_of(place)
    done = tidegate(place.folder, "db", "uninstall", "lake", "--yes")
    assert done.code == DONE, done
    assert place.control.value(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'") == 0


def test_projects_that_share_a_catalog_keep_what_is_recorded_of_their_own(
    make_place: MakePlace,
) -> None:
    mine = lake_place(make_place, lake=REST)
    mine.source.execute(*CREATE, FILL)
    theirs = lake_place(
        make_place, {**ORDERS, "target": "lake:raw.theirs"}, lake=REST, name="other", beside=mine
    )
    assert schema_of(mine) == schema_of(theirs)
    for place in (mine, theirs):
        done = tidegate(
            place.folder, "watermark", "set", "orders", "2026-01-01 00:03+00", "--reason", "x"
        )
        assert done.code == DONE, done
    same = lake_place(make_place, ORDERS, lake=REST, name="third", beside=mine)
    done = tidegate(same.folder, "watermark", "set", "orders", "2026-01-01", "--reason", "x")
    assert (done.code, "raw.orders is loaded by shop.orders" in done.err) == (USAGE, True), done
    note(mine, "load-1", {"pipeline": "shop.orders"})
    note(mine, "load-2", {"pipeline": "other.orders"})
    done = tidegate(mine.folder, "db", "uninstall", "lake", "--yes", "--json")
    assert done.code == DONE, done
    assert done.document["found"][0]["shared_with"] == ["project other"]
    schema = schema_of(mine)
    assert mine.control.execute(f"SELECT pipeline_name FROM {schema}.etl_state") == [
        ("other.orders",)
    ]
    assert mine.control.execute(f"SELECT update_id FROM {schema}.intents") == [("load-2",)]


def test_a_sync_is_removed_though_its_lake_is_gone(make_place: MakePlace) -> None:
    place = lake_place(make_place, lake=REST)
    place.source.execute(*CREATE, FILL)
    done = tidegate(
        place.folder, "watermark", "set", "orders", "2026-01-01 00:03+00", "--reason", "x"
    )
    assert done.code == DONE, done
    assert tidegate(place.folder, "plan").code == FAILED
    done = tidegate(place.folder, "remove", "orders", "--yes")
    assert done.code == DONE, done
    assert ledger_rows(place, "etl_state") == 0


def test_db_check_names_the_schema_of_the_lakes_ledger(place: Place) -> None:
    def state(done: Done) -> tuple[str, str]:
        (found,) = [one for one in done.document if one["connection"] == "lake"]
        return found["schema"], found["state"]

    schema = schema_of(place)
    markers = f"{schema}.table_updates"
    assert state(tidegate(place.folder, "db", "check", "--json")) == (
        schema,
        f"complete, markers in {markers}",
    )
    place.control.execute(f"DROP TABLE {schema}.intents")
    done = tidegate(place.folder, "db", "check", "--json")
    assert state(done) == (schema, "incomplete, without intents")
    assert done.code == 1


@pytest.mark.parametrize("command", ["url", "psql"])
def test_a_lake_has_no_address(place: Place, command: str) -> None:
    done = tidegate(place.folder, "db", command, "lake")
    assert done.code == USAGE
    assert 'connection "lake" is a lake' in done.err
    assert f"tidegate db {command} control" in done.err


def test_vacuum_leaves_a_lake_to_maintenance(place: Place) -> None:
    done = tidegate(place.folder, "vacuum", "orders")
    assert done.code == DONE
    assert "orders: nothing to do, a lake's tables are looked after by maintenance" in done.out


def test_a_queued_load_of_a_lake_is_shown(place: Place) -> None:
    done = tidegate(place.folder, "run", "orders", "--queue", "--json")
    assert done.code == DONE, done
    shown = tidegate(place.folder, "job", "show", done.document[0]["job"])
    assert f"into: {TARGET}" in shown.out
    assert "/tidegate_lake_shop_lake/raw.orders is free" in shown.out


def test_the_tables_of_a_group_are_planned_into_the_lake(make_place: MakePlace) -> None:
    group = {"name": "shop", "source": "shop:public.*", "target": "lake:raw.{table}"}
    place = lake_place(make_place, group)
    place.source.execute(*CREATE, FILL, "CREATE TABLE countries (code text PRIMARY KEY)")
    found = tidegate(place.folder, "plan", "--json")
    assert found.code == DONE, found
    plans = {one["sync"]: one for one in found.document["plans"]}
    assert plans["shop.countries"]["target"] == "lake:raw.countries"
    assert plans["shop.countries"]["target_table"]["create"] == ["`code` string"]
    assert plans["shop.orders"]["mode"] == "merge"
    fill_table(place, orders(range(1, 6)))
    done = tidegate(place.folder, "adopt", "shop.orders", "--from-target-max")
    assert done.code == DONE, done
    (listed,) = [
        one
        for one in tidegate(place.folder, "watermark", "list", "--json").document
        if one["sync"] == "shop.orders"
    ]
    assert listed["target"] == TARGET
    gone = tidegate(place.folder, "remove", "shop", "--yes", "--json")
    assert [one["sync"] for one in gone.document["removed"]] == ["shop.orders"]


def test_two_lakes_of_a_project_do_not_share_what_is_recorded(make_place: MakePlace) -> None:
    other = {**ORDERS, "name": "other", "target": "second:raw.orders"}
    place = lake_place(make_place, ORDERS, other)
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text() + '\n[connections.second]\ntype = "iceberg"\n')
    place.source.execute(*CREATE, FILL)
    fill_table(place, orders(range(1, 6)))
    assert tidegate(place.folder, "adopt", "orders", "--from-target-max").code == DONE
    assert place.open().watermark("other").value is None
    found = tidegate(place.folder, "plan", "--json").document
    assert found["refusals"] == []
    assert [one["target_table"]["exists"] for one in found["plans"]] == [True, False]
