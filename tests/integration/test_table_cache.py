"""The table cache follows the catalogs, and loses nothing when one of them is down."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from integration.cached_lakes import (
    ITEMS,
    ORDERS,
    TARGET,
    add_files,
    cached,
    cared_place,
    names,
    opened,
    refresh,
    small_files,
)
from integration.conftest import Database, MakePlace, Place
from integration.filled_lakes import catalog_of, schema_of
from integration.lake_harness import spelled_out
from integration.lakes import CREATE, FILL, make_lake_project
from integration.lakes import ORDERS as SYNC
from integration.rest_catalog import rest_server
from tidegate.control.lake_tables import LakeTables
from tidegate.control.sweeps import Sweeps
from tidegate.errors import UnknownTable, UsageError
from tidegate.insight.tables import (
    find_by_name,
    find_table,
    list_all,
    list_tables,
    table_status,
)
from tidegate.lake import metadata
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.model.relation import Endpoint, Relation
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.runtime import refreshing
from tidegate.runtime.refreshing import Refreshed, Refresher, note_written
from tidegate.spark.session import SparkSessions

OTHER = '[connections.other]\ntype = "iceberg"\n'


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A lake with two tables of six small files each."""
    place = cared_place(make_place)
    small_files(place, ORDERS)
    small_files(place, ITEMS)
    return place


def drop(place: Place, relation: Relation) -> None:
    place.control.execute(
        sql.SQL("DELETE FROM {} WHERE table_name = {}").format(
            sql.Identifier(schema_of(place), "iceberg_tables"), relation.name
        )
    )


def test_a_refresh_reads_what_is_new_or_changed_and_forgets_what_is_gone(place: Place) -> None:
    assert refresh(place) == Refreshed(catalogs=1, read=2)
    found = cached(place)
    assert found is not None
    assert found.facts is not None
    assert found.facts.data.files == 6
    assert found.facts.snapshots == 6
    assert refresh(place) == Refreshed(catalogs=1, unchanged=2)
    add_files(place)
    assert refresh(place) == Refreshed(catalogs=1, read=1, unchanged=1)
    found = cached(place)
    assert found is not None
    assert found.facts is not None
    assert found.facts.data.files == 7
    drop(place, ORDERS)
    assert refresh(place) == Refreshed(catalogs=1, unchanged=1, removed=1)
    assert names(place) == ["lake:raw.items"]


def test_a_table_that_cannot_be_read_keeps_its_facts_and_does_not_stop_the_others(
    place: Place,
) -> None:
    refresh(place)
    add_files(place, ORDERS)
    add_files(place, ITEMS)
    folder = Path(catalog_of(place).warehouse) / "raw" / "items"
    away = folder.rename(folder.with_name("away"))
    assert refresh(place) == Refreshed(catalogs=1, read=1, unreadable=1)
    with opened(place) as (project, control):
        broken = find_table(project.context, control, "raw", "items")
        whole = find_table(project.context, control, "raw", "orders")
    assert broken.facts is not None
    assert broken.facts.data.files == 6
    assert broken.is_stale
    assert broken.stale_since is not None
    assert broken.stale_reason is not None
    assert "lost its metadata" in broken.stale_reason
    assert not whole.is_stale
    assert whole.facts is not None
    assert whole.facts.data.files == 7
    away.rename(folder)
    assert refresh(place) == Refreshed(catalogs=1, read=1, unchanged=1)
    with opened(place) as (project, control):
        assert not find_table(project.context, control, "raw", "items").is_stale


def test_what_was_read_earlier_never_takes_the_place_of_what_was_read_later(place: Place) -> None:
    refresh(place)
    with opened(place) as (project, control):
        tables = LakeTables(project.context.plane, project.name)
        early = tables.clock(control)
        before = tables.get(control, TARGET)
        assert before is not None
        assert before.facts is not None
        add_files(place)
        refresh(place)
        assert not tables.put(control, TARGET, before.facts, early)
        after = tables.get(control, TARGET)
        assert after is not None
        assert after.facts is not None
        assert after.facts.data.files == 7


def test_a_table_made_while_the_catalog_is_listed_is_not_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(place)

    def list_late(catalog: Any) -> dict[Relation, str | None]:
        found = metadata.list_locations(catalog)
        small_files(place, Relation("raw", "late"), files=1)
        with opened(place) as (project, control):
            late = Endpoint("lake", Relation("raw", "late"))
            note_written(project.context, control, late, anew=False)
        return found

    monkeypatch.setattr(refreshing, "list_locations", list_late)
    refresh(place)
    assert names(place) == ["lake:raw.items", "lake:raw.late", "lake:raw.orders"]


def test_of_two_refreshers_one_reads_and_the_other_leaves_it_to_that(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, go_on = threading.Event(), threading.Event()

    def wait(catalog: Any) -> dict[Relation, str | None]:
        listed.set()
        assert go_on.wait(60)
        return metadata.list_locations(catalog)

    monkeypatch.setattr(refreshing, "list_locations", wait)
    done: list[Refreshed] = []
    first = threading.Thread(target=lambda: done.append(refresh(place)))
    first.start()
    assert listed.wait(60)
    assert refresh(place) == Refreshed(skipped=1)
    go_on.set()
    first.join()
    assert done == [Refreshed(catalogs=1, read=2)]
    assert refresh(place) == Refreshed(catalogs=1, unchanged=2)


def test_a_refresher_that_was_stopped_does_not_stop_the_others_for_ever(place: Place) -> None:
    refresh(place)
    with opened(place) as (project, control):
        tables = LakeTables(project.context.plane, project.name)
        with tables.refreshing(control, "lake") as held:
            assert held
            assert refresh(place) == Refreshed(skipped=1)
            control.execute(
                "UPDATE tidegate_control.lake_catalogs SET tried_at = now() - interval '1 hour'"
            )
            assert refresh(place) == Refreshed(catalogs=1, unchanged=2)


def test_a_refresher_that_is_told_to_stop_leaves_the_rest_to_the_next(place: Place) -> None:
    answers = iter([False, True])
    with opened(place) as (project, control):
        stopped = Refresher(project.context, lambda: next(answers)).run_once(control)
        assert stopped == Refreshed(catalogs=1, read=1)
        (catalog,) = list_tables(project.context, control).catalogs
        assert catalog.refreshed_at is None
        assert Refresher(project.context).run_once(control) == Refreshed(
            catalogs=1, read=1, unchanged=1
        )


def test_what_dead_attempts_have_staged_is_estimated_with_each_refresh(place: Place) -> None:
    refresh(place)
    before = cached(place)
    assert before is not None
    assert before.orphans is not None
    assert before.orphans.files == 0
    with opened(place) as (project, control):
        folders = StagedFolders(project.context.ledger("lake"))
        folders.note(control, "raw.orders", StagedFolder("tidegate-dead-1", "d" * 32, "file:/x"))
    refresh(place)
    after = cached(place)
    assert after is not None
    assert after.orphans is not None
    assert after.orphans.noted_folders == 1
    assert after.orphans.files >= 1


def test_a_sync_puts_its_new_table_into_the_cache_at_once(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    project, place = make_lake_project(make_place, warm_spark, SYNC)
    place.source.execute(CREATE, FILL)
    assert project.run("orders").status == "done"
    found = cached(place)
    assert found is not None
    assert found.facts is not None
    assert found.facts.records == 10
    assert found.orphans is not None


def test_several_loops_refresh_about_as_often_as_one(place: Place) -> None:
    with place.open() as one, place.open() as two:
        told: list[int] = []
        first = Refresher(one.context).loop(then=lambda: told.append(1))
        second = Refresher(two.context).loop()
        done = [loop.run_once() for loop in (first, second)]
        assert [one and one["read"] for one in done] == [2, 0]
        assert told
        first.stop()
        second.stop()


def test_a_rest_catalog_that_is_down_leaves_every_table_and_is_said_to_be_stale(
    make_place: MakePlace, server: EmbeddedServer, tmp_path: Path
) -> None:
    from pyiceberg.catalog import load_catalog

    from integration.filled_lakes import COLUMNS, orders

    server.ensure_database("refreshed_backend")
    backend = Database(server.conninfo("refreshed_backend"))
    with rest_server(tmp_path / "rest", spelled_out(backend)) as url:
        place = cared_place(make_place, lake=f'type = "iceberg"\ncatalog = "rest"\nuri = "{url}"')
        client = load_catalog("lake", type="rest", uri=url)
        client.create_namespace("raw")
        client.create_table("raw.orders", COLUMNS).append(orders(range(1, 4)))
        assert refresh(place) == Refreshed(catalogs=1, read=1)
        # Such a catalog does not tell with its list what has changed.
        assert refresh(place) == Refreshed(catalogs=1, read=1)
        with opened(place) as (project, control):
            assert not list_tables(project.context, control).tables[0].is_stale
    assert refresh(place) == Refreshed(failed=1)
    with opened(place) as (project, control):
        listing = list_tables(project.context, control)
        (table,), (catalog,) = listing.tables, listing.catalogs
    assert table.facts is not None
    assert table.facts.records == 3
    assert table.is_stale
    assert table.stale_since is not None
    assert catalog.error is not None
    assert "cannot be read" in catalog.error
    assert catalog.refreshed_at == catalog.stale_since
    assert table.as_of == table.stale_since
    assert catalog.tried_at is not None
    assert catalog.refreshed_at is not None
    assert catalog.tried_at > catalog.refreshed_at


def test_a_warehouse_of_folders_that_is_not_there_has_lost_no_table(
    make_place: MakePlace, tmp_path: Path
) -> None:
    warehouse = tmp_path / "folders"
    place = cared_place(
        make_place, lake=f'type = "iceberg"\ncatalog = "hadoop"\nwarehouse = "{warehouse}"'
    )
    make_folder_table(warehouse)
    assert refresh(place) == Refreshed(catalogs=1, read=1)
    away = warehouse.rename(tmp_path / "away")
    assert refresh(place) == Refreshed(failed=1)
    assert names(place) == ["lake:raw.orders"]
    away.rename(warehouse)
    assert refresh(place) == Refreshed(catalogs=1, read=1)


def make_folder_table(warehouse: Path) -> None:
    from pyiceberg.io import load_file_io
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.serializers import ToOutputFile
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.types import LongType, NestedField

    folder = warehouse / "raw" / "orders"
    (folder / "metadata").mkdir(parents=True)
    made = new_table_metadata(
        location=folder.as_uri(),
        schema=Schema(NestedField(1, "id", LongType(), required=False)),
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        properties={"format-version": "2"},
    )
    location = f"{folder.as_uri()}/metadata/v1.metadata.json"
    ToOutputFile.table_metadata(made, load_file_io({}, location).new_output(location))
    (folder / "metadata" / "version-hint.text").write_text("1")


@pytest.fixture
def two_lakes(make_place: MakePlace) -> Place:
    """raw.orders in both of two lakes, raw.items in one."""
    place = cared_place(make_place)
    toml = place.folder / "tidegate.toml"
    toml.write_text(toml.read_text() + OTHER)
    small_files(place, ORDERS, files=1)
    small_files(place, ITEMS, files=1)
    with opened(place) as (project, control):
        Refresher(project.context).run_once(control)
        tables = LakeTables(project.context.plane, project.name)
        held = tables.get(control, TARGET)
        assert held is not None
        assert held.facts is not None
        tables.put(control, Endpoint("other", ORDERS), held.facts, tables.clock(control))
    return place


def test_a_table_is_found_by_as_much_of_its_name_as_is_clear(two_lakes: Place) -> None:
    with opened(two_lakes) as (project, control):
        context = project.context
        for name in ("lake:raw.items", "raw.items", "items"):
            assert str(find_by_name(context, control, name).target) == "lake:raw.items"
        assert str(find_table(context, control, "other:raw", "orders").target) == "other:raw.orders"
        assert str(find_table(context, control, "raw", "items").target) == "lake:raw.items"
        for ambiguous in ("raw.orders", "orders"):
            with pytest.raises(UsageError, match=r"lake:raw\.orders, other:raw\.orders"):
                find_by_name(context, control, ambiguous)
        with pytest.raises(UsageError, match=r"lake:raw\.orders, other:raw\.orders"):
            find_table(context, control, "raw", "orders")
        for wrong, right in (
            ("raw.itmes", r"did you mean lake:raw\.items"),
            ("itmes", r"did you mean lake:raw\.items"),
            ("lake:raw.itmes", r"did you mean lake:raw\.items"),
            ("lkae:raw.items", r"did you mean lake:raw\.items"),
            ("nothing.like_it", r"tidegate table list --refresh"),
        ):
            with pytest.raises(UnknownTable, match=right):
                find_by_name(context, control, wrong)


def test_pages_of_the_list_hold_each_table_once(
    two_lakes: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(two_lakes) as (project, control):
        found, after = [], None
        while True:
            page = list_tables(project.context, control, after=after, limit=1)
            found += [str(one.target) for one in page.tables]
            after = page.next
            if after is None:
                break
        assert found == ["lake:raw.items", "lake:raw.orders", "other:raw.orders"]
        with pytest.raises(UsageError):
            list_tables(project.context, control, limit=0)
        with monkeypatch.context() as patched:
            patched.setattr(list_tables, "__kwdefaults__", {"after": None, "limit": 1})
            assert [str(one.target) for one in list_all(project.context, control).tables] == found


def test_a_live_status_is_cached_and_one_of_a_table_that_is_gone_says_so(place: Place) -> None:
    refresh(place)
    add_files(place)
    with opened(place) as (project, control):
        table = find_table(project.context, control, "raw", "orders")
        assert table.facts is not None
        assert table.facts.data.files == 6
        live = table_status(project.context, control, table, live=True)
        assert live.live
        assert live.facts is not None
        assert live.facts.data.files == 7
        again = find_table(project.context, control, "raw", "orders")
        assert again.facts == live.facts
        assert not again.live
        drop(place, ORDERS)
        with pytest.raises(UnknownTable, match="any more"):
            table_status(project.context, control, table, live=True)
        with pytest.raises(UnknownTable):
            find_table(project.context, control, "raw", "orders")


def test_a_cache_that_nobody_refreshes_says_since_when(place: Place) -> None:
    refresh(place)
    place.control.execute(
        "UPDATE tidegate_control.lake_catalogs SET refreshed_at = now() - interval '1 day'",
        "UPDATE tidegate_control.lake_tables SET read_at = now() - interval '2 days'",
    )
    with opened(place) as (project, control):
        table = find_table(project.context, control, "raw", "orders")
    assert table.stale_reason is not None
    assert "nobody has refreshed" in table.stale_reason
    assert table.stale_since == table.as_of


def test_facts_of_another_version_are_read_anew(place: Place) -> None:
    refresh(place)
    place.control.execute('UPDATE tidegate_control.lake_tables SET facts = \'{"uuid": "x"}\'')
    found = cached(place)
    assert found is not None
    assert found.facts is None


def test_every_sweep_is_noted_but_written_at_most_every_few_seconds(place: Place) -> None:
    with opened(place) as (project, control):
        project.sweeper("one").run_once(control)
        sweeps = Sweeps(project.context.plane)
        first = sweeps.last(control, project.name)
        assert first is not None
        assert first.swept_by == "one"
        assert first.age_seconds < 60
        project.sweeper("two").run_once(control)
        assert replace(sweeps.last(control, project.name), age_seconds=first.age_seconds) == first
        control.execute("UPDATE tidegate_control.sweeps SET swept_at = now() - interval '1 min'")
        project.sweeper("two").run_once(control)
        last = sweeps.last(control, project.name)
        assert last is not None
        assert last.swept_by == "two"
