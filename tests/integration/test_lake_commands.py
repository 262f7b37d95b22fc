"""Commands that look at a lake, or at what is recorded of it: none of them starts Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE
from integration.conftest import MakePlace, Place
from integration.filled_lakes import (
    ORDERS,
    fill_table,
    held,
    lake_place,
    make_shared,
    open_table,
    orders,
    schema_of,
    table_of,
)
from integration.here import tidegate
from integration.orders import CREATE, FILL
from tidegate.iceberg.table import UPDATE_ID, branch_name
from tidegate.ledger.iceberg import Intent, Intents, StagedFolder, StagedFolders
from tidegate.project import Project

__all__ = ["make_shared"]

TARGET = "lake:raw.orders"
DEAD = "d" * 32
REST = 'type = "iceberg"\ncatalog = "rest"\nuri = "http://127.0.0.1:1"'
REASON = ("--reason", "again")


def adopted(make_place: MakePlace) -> Place:
    """Five of ten orders are in the lake, and the sync has adopted them."""
    place = lake_place(make_place)
    place.source.execute(*CREATE, FILL)
    fill_table(place, orders(range(1, 6)))
    adopt(place)
    return place


def adopt(place: Place) -> None:
    done = tidegate(place.folder, "adopt", "orders", "--from-target-max")
    assert done.code == DONE, done


@pytest.fixture(scope="module")
def place(make_shared: MakePlace) -> Place:
    """One project for what leaves it as it was."""
    return adopted(make_shared)


@pytest.fixture
def own(make_place: MakePlace) -> Place:
    return adopted(make_place)


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
    for _ in range(2):
        place = lake_place(make_place, databases=1)
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


def test_watermarks_and_markers_are_listed_and_changed(place: Place) -> None:
    (found,) = tidegate(place.folder, "watermark", "list", "--json").document
    assert found["target"] == TARGET
    for way, value in (("rewind", "2026-01-01 00:02+00"), ("set", "2026-01-01 00:03+00")):
        done = tidegate(place.folder, "watermark", way, "orders", value, *REASON)
        assert done.code == DONE, done
    shown = tidegate(place.folder, "watermark", "show", "orders")
    assert "2026-01-01 00:03:00+00" in shown.out
    project = place.open()
    assert project.watermark("orders").get().generation == 1
    marker = project.marker(TARGET, update_id="x-1")
    assert marker.exists() is False
    with project.connect("lake") as connection, connection.transaction():
        assert marker.touch(connection) is True
    assert marker.exists() is True
    listed = tidegate(place.folder, "marker", "list", "lake", "--json").document
    (row,) = [one for one in listed if one["update_id"] == "x-1"]
    assert (row["connection"], row["table"]) == ("lake", "raw.orders")
    done = tidegate(place.folder, "marker", "forget", TARGET, "x-1")
    assert (done.code, done.err) == (DONE, "")
    assert marker.exists() is False
    assert tidegate(place.folder, "marker", "forget", TARGET, "x-1").code == USAGE


def test_a_load_that_is_in_and_not_recorded_counts_as_in_or_a_person_says_so(
    place: Place,
) -> None:
    marker = place.open().marker(TARGET, update_id="load-5")
    note(place, "load-5")
    assert marker.exists() is False
    open_table(place).append(orders([6]), snapshot_properties={UPDATE_ID: "load-5"})
    assert marker.exists() is True
    done = tidegate(place.folder, "marker", "forget", TARGET, "load-5")
    assert done.code == DONE
    assert "itself says that load-5 is in" in done.err
    assert ledger_rows(place, "intents") == 0
    # Where the table cannot tell.
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


def test_what_a_lake_has_not_and_never_does_is_told(place: Place) -> None:
    for command in ("url", "psql"):
        done = tidegate(place.folder, "db", command, "lake")
        assert (done.code, 'connection "lake" is a lake' in done.err) == (USAGE, True), done
        assert f"tidegate db {command} control" in done.err
    done = tidegate(place.folder, "vacuum", "orders")
    assert done.code == DONE
    assert "orders: nothing to do, a lake's tables are looked after by maintenance" in done.out
    done = tidegate(place.folder, "remove", "orders", "--yes", "--drop-target")
    assert done.code == USAGE
    assert "is a table of a lake, which Tidegate never drops" in done.err
    with held(place):
        assert tidegate(place.folder, "remove", "orders", "--yes").code == BUSY
    assert ledger_rows(place, "etl_state") == 1


def test_removing_a_sync_forgets_all_of_it_and_leaves_the_table(own: Place) -> None:
    note(own, "load-6", {"pipeline": "shop.orders"})
    note(own, "another-1")
    staged, kept = stage(own, DEAD), stage(own, "e" * 32, adopted=True)
    open_table(own).manage_snapshots().create_branch(
        table_of(own).main, branch_name("f" * 32)
    ).commit()
    branched = stage(own, "f" * 32)
    snapshot = table_of(own).main
    queued = tidegate(own.folder, "run", "orders", "--queue", "--json")
    shown = tidegate(own.folder, "job", "show", queued.document[0]["job"])
    assert f"into: {TARGET}" in shown.out
    assert "/tidegate_lake_shop_lake/raw.orders is free" in shown.out
    tidegate(own.folder, "job", "cancel", queued.document[0]["job"])
    done = tidegate(own.folder, "remove", "orders", "--yes")
    assert done.code == DONE, done
    assert "the table raw.orders stays" in done.out
    assert f"branch {branch_name('f' * 32)} stays until the next run into this table" in done.out
    for table in ("etl_state", "watermark_log", "fences"):
        assert ledger_rows(own, table) == 0
    intents = own.control.execute(f"SELECT update_id FROM {schema_of(own)}.intents")
    assert intents == [("another-1",)]
    # Files that may be the table's own are never touched; a branch is noted until it is dropped.
    assert (staged.exists(), kept.exists(), branched.exists()) == (False, True, False)
    folders = own.control.execute(f"SELECT attempt_id FROM {schema_of(own)}.staged_folders")
    assert folders == [("f" * 32,)]
    assert (table_of(own).main, table_of(own).rows()) == (snapshot, 5)
    assert "nothing is recorded" in tidegate(own.folder, "remove", "orders", "--yes").out


def test_uninstalling_leaves_the_catalog_and_says_why(own: Place) -> None:
    schema = schema_of(own)

    def check() -> str:
        found = tidegate(own.folder, "db", "check", "--json")
        (one,) = [one for one in found.document if one["connection"] == "lake"]
        assert one["schema"] == schema
        assert found.code == (DONE if one["state"].startswith("complete") else FAILED)
        return str(one["state"])

    assert check() == f"complete, markers in {schema}.table_updates"
    # A marker table of Luigi's beside the control plane tells of tables of another database.
    own.control.execute(
        "CREATE TABLE table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('x-1', 'raw.orders')",
        f"DROP TABLE {schema}.table_updates, {schema}.intents",
    )
    assert check() == "incomplete, without intents, table_updates"
    assert own.open().marker(TARGET, update_id="x-1").exists() is False
    assert tidegate(own.folder, "marker", "touch", TARGET, "x-1").code == DONE
    assert ledger_rows(own, "table_updates") == 1

    staged = stage(own, DEAD)
    shown = tidegate(own.folder, "db", "uninstall", "--dry-run")
    assert shown.code == DONE, shown
    assert f"table {schema}.etl_state, 1 rows" in shown.out
    assert f"table {schema}.iceberg_tables (the lake's catalog)" in shown.out
    assert "the only way to the lake's tables, so it is never removed" in shown.out
    done = tidegate(own.folder, "db", "uninstall", "--yes", "--json")
    assert done.code == DONE, done
    (lake,) = [one for one in done.document["found"] if one["connection"] == "lake"]
    assert lake["schema"] == schema
    assert all(text.endswith("(the lake's catalog)") for text in lake["kept"])
    left = own.control.execute(
        f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' ORDER BY 1"
    )
    assert left == [("iceberg_namespace_properties",), ("iceberg_tables",)]
    assert (table_of(own).rows(), staged.exists()) == (5, False)
    assert "nothing in these databases" in tidegate(own.folder, "db", "uninstall", "--yes").out
    # What was removed comes back with the next use, around the catalog that stayed.
    adopt(own)
    # A sync that is no longer declared is found in the lake.
    file = own.folder / "tidegate.toml"
    text = file.read_text()
    head, tail = text.index("[sync.orders]"), text.index("[connections.lake]")
    file.write_text(text[:head] + text[tail:])
    done = tidegate(own.folder, "remove", "orders", "--yes", "--json")
    assert done.code == DONE, done
    assert [one["target"] for one in done.document["removed"]] == [TARGET]
    assert ledger_rows(own, "etl_state") == 0


def test_projects_that_share_a_catalog_keep_what_is_recorded_of_their_own(
    make_place: MakePlace,
) -> None:
    def set_watermark(place: Place) -> Any:
        return tidegate(place.folder, "watermark", "set", "orders", "2026-01-01 00:03+00", *REASON)

    mine = lake_place(make_place, lake=REST)
    mine.source.execute(*CREATE, FILL)
    theirs = lake_place(
        make_place, {**ORDERS, "target": "lake:raw.theirs"}, lake=REST, name="other", beside=mine
    )
    schema = schema_of(mine)
    assert schema == schema_of(theirs)
    for place in (mine, theirs):
        assert set_watermark(place).code == DONE
    done = set_watermark(lake_place(make_place, ORDERS, lake=REST, name="third", beside=mine))
    assert (done.code, "raw.orders is loaded by shop.orders" in done.err) == (USAGE, True), done
    note(mine, "load-1", {"pipeline": "shop.orders"})
    note(mine, "load-2", {"pipeline": "other.orders"})
    done = tidegate(mine.folder, "db", "uninstall", "lake", "--yes", "--json")
    assert done.code == DONE, done
    assert done.document["found"][0]["shared_with"] == ["project other"]
    recorded = mine.control.execute(f"SELECT pipeline_name FROM {schema}.etl_state")
    assert recorded == [("other.orders",)]
    assert mine.control.execute(f"SELECT update_id FROM {schema}.intents") == [("load-2",)]
    # A sync is removed though its lake is gone; of a catalog that is not ours all is uninstalled.
    assert tidegate(theirs.folder, "plan").code == FAILED
    done = tidegate(theirs.folder, "remove", "orders", "--yes")
    assert (done.code, ledger_rows(theirs, "etl_state")) == (DONE, 0), done
    done = tidegate(theirs.folder, "db", "uninstall", "lake", "--yes")
    assert done.code == DONE, done
    assert mine.control.value(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'") == 0


def test_two_lakes_of_a_project_do_not_share_what_is_recorded(own: Place) -> None:
    file = own.folder / "tidegate.toml"
    other = '[sync.other]\nsource = "shop:public.orders"\ntarget = "second:raw.orders"\n'
    other += 'cursor = "updated_at"\n\n[connections.second]\ntype = "iceberg"\n'
    file.write_text(f"{file.read_text()}\n{other}")
    assert own.open().watermark("other").value is None
    found = tidegate(own.folder, "plan", "--json").document
    assert found["refusals"] == []
    assert [one["target_table"]["exists"] for one in found["plans"]] == [True, False]
