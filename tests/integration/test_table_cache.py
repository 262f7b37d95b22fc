"""The table cache follows the catalogs, and loses nothing when one of them is down."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from pyiceberg.table import Table

from databases import Databases
from integration.cached_lakes import (
    ITEMS,
    ORDERS,
    TARGET,
    add_files,
    cached,
    cared_place,
    forget_all,
    names,
    opened,
    refresh,
    small_files,
)
from integration.conftest import MakePlace, Place
from integration.filled_lakes import catalog_of, schema_of
from integration.shared_places import shared_places
from tidegate.core.errors import BusyError, DestinationError, UnknownTable, UsageError
from tidegate.core.relation import Endpoint, Relation
from tidegate.iceberg import metadata
from tidegate.iceberg.manifests import normal_path
from tidegate.iceberg.metadata import open_table, read_consistently
from tidegate.jobs.sweeper import Sweeps
from tidegate.ledger.iceberg import StagedFolder, StagedFolders
from tidegate.maintenance import table_cache
from tidegate.maintenance.facts import TableFacts, facts_of, read_facts, read_target_facts
from tidegate.maintenance.orphan_files import OrphanEstimate, estimate_orphans
from tidegate.maintenance.table_cache import Refreshed, Refresher, TableCache, cache_written_table
from tidegate.maintenance.table_report import list_health, table_health
from tidegate.maintenance.tables import (
    find_by_name,
    find_table,
    list_all,
    list_tables,
    table_status,
)
from tidegate.postgres.connection import Connection
from tidegate.project import Project

LATE = Relation("raw", "late")
ITEMS_TARGET = Endpoint("lake", ITEMS)
OTHER = '[connections.other]\ntype = "iceberg"\n'
WANTED = """
[maintenance]
rewrite_data_files = { target_file_size = "1MB" }
thresholds = { orphan_files = 3 }
"""


@pytest.fixture(scope="module")
def shared(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A lake with two tables; each test counts files from what it finds."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("cache")) as make:
        place = cared_place(make, WANTED, databases=1)
        small_files(place, ORDERS, files=3)
        small_files(place, ITEMS, files=1)
        yield place


@pytest.fixture
def place(shared: Place) -> Place:
    """Nothing is cached yet."""
    forget_all(shared)
    return shared


def drop(place: Place, relation: Relation) -> None:
    place.control.execute(
        sql.SQL("DELETE FROM {} WHERE table_name = {}").format(
            sql.Identifier(schema_of(place), "iceberg_tables"), relation.name
        )
    )
    shutil.rmtree(Path(catalog_of(place).warehouse) / relation.schema / relation.name)


def held_facts(place: Place, relation: Relation = ORDERS) -> TableFacts:
    """What is cached of a table."""
    found = cached(place, Endpoint("lake", relation))
    assert found is not None
    assert found.facts is not None
    return found.facts


def files(place: Place, relation: Relation = ORDERS) -> int:
    return held_facts(place, relation).data.files


def test_a_refresh_reads_what_is_new_or_changed_and_forgets_what_is_gone(place: Place) -> None:
    small_files(place, LATE, files=4)
    assert refresh(place) == Refreshed(catalogs=1, read=3)
    found = held_facts(place, LATE)
    assert (found.data.files, found.snapshots) == (4, 4)
    assert refresh(place) == Refreshed(catalogs=1, unchanged=3)
    add_files(place, LATE)
    assert refresh(place) == Refreshed(catalogs=1, read=1, unchanged=2)
    assert files(place, LATE) == 5
    drop(place, LATE)
    assert refresh(place) == Refreshed(catalogs=1, unchanged=2, removed=1)
    assert names(place) == ["lake:raw.items", "lake:raw.orders"]


def test_a_table_that_cannot_be_read_keeps_its_facts_and_does_not_stop_the_others(
    place: Place,
) -> None:
    refresh(place)
    before = {one: files(place, one) for one in (ORDERS, ITEMS)}
    add_files(place, ORDERS)
    add_files(place, ITEMS)
    folder = Path(catalog_of(place).warehouse) / "raw" / "items"
    away = folder.rename(folder.with_name("away"))
    assert refresh(place) == Refreshed(catalogs=1, read=1, unreadable=1)
    with opened(place) as (project, control):
        broken = find_table(project.context, control, "raw", "items")
        whole = find_table(project.context, control, "raw", "orders")
    assert broken.is_stale
    assert broken.stale_since is not None
    assert "lost its metadata" in (broken.stale_reason or "")
    assert not whole.is_stale
    assert files(place, ITEMS) == before[ITEMS]
    assert files(place, ORDERS) == before[ORDERS] + 1
    away.rename(folder)
    assert refresh(place) == Refreshed(catalogs=1, read=1, unchanged=1)
    with opened(place) as (project, control):
        assert not find_table(project.context, control, "raw", "items").is_stale


def test_what_was_read_earlier_never_takes_the_place_of_what_was_read_later(place: Place) -> None:
    refresh(place)
    before = held_facts(place)
    with opened(place) as (project, control):
        tables = TableCache(project.context.plane, project.name)
        early = tables.clock(control)
        add_files(place)
        refresh(place)
        assert not tables.put(control, TARGET, before, early)
    assert files(place) == before.data.files + 1


def test_a_table_made_while_the_catalog_is_listed_is_not_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(place)

    def list_late(catalog: Any) -> dict[Relation, str | None]:
        found = metadata.list_locations(catalog)
        small_files(place, LATE, files=1)
        with opened(place) as (project, control):
            table = project.context.destination(Endpoint("lake", LATE))
            cache_written_table(project.context, control, table, anew=False)
        return found

    monkeypatch.setattr(table_cache, "list_locations", list_late)
    refresh(place)
    assert names(place) == ["lake:raw.items", "lake:raw.late", "lake:raw.orders"]
    drop(place, LATE)


def test_of_two_refreshers_one_reads_unless_it_was_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, go_on = threading.Event(), threading.Event()

    def wait(catalog: Any) -> dict[Relation, str | None]:
        listed.set()
        assert go_on.wait(60)
        return metadata.list_locations(catalog)

    monkeypatch.setattr(table_cache, "list_locations", wait)
    done: list[Refreshed] = []
    first = threading.Thread(target=lambda: done.append(refresh(place)))
    first.start()
    assert listed.wait(60)
    assert refresh(place) == Refreshed(skipped=1)
    go_on.set()
    first.join()
    assert done == [Refreshed(catalogs=1, read=2)]
    assert refresh(place) == Refreshed(catalogs=1, unchanged=2)

    with opened(place) as (project, control):
        tables = TableCache(project.context.plane, project.name)
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


def test_a_warehouse_of_folders_that_is_not_there_has_lost_no_table(
    place: Place, make_place: MakePlace, tmp_path: Path
) -> None:
    warehouse = tmp_path / "folders"
    lake = f'type = "iceberg"\ncatalog = "hadoop"\nwarehouse = "{warehouse}"'
    other = cared_place(make_place, lake=lake, databases=1)
    folder = warehouse / "raw" / "orders" / "metadata"
    folder.mkdir(parents=True)
    table = open_table(catalog_of(place), ORDERS)
    assert table is not None
    shutil.copy(normal_path(table.metadata_location), folder / "v1.metadata.json")
    (folder / "version-hint.text").write_text("1")
    assert refresh(other) == Refreshed(catalogs=1, read=1)
    away = warehouse.rename(tmp_path / "away")
    assert refresh(other) == Refreshed(failed=1)
    with opened(other) as (project, control):
        listing = list_tables(project.context, control)
        (found,), (catalog,) = listing.tables, listing.catalogs
    assert str(found.target) == "lake:raw.orders"
    assert found.facts is not None
    assert found.is_stale
    assert catalog.error is not None
    assert found.as_of == found.stale_since
    assert catalog.refreshed_at == catalog.stale_since
    assert catalog.tried_at is not None
    assert catalog.refreshed_at is not None
    assert catalog.tried_at > catalog.refreshed_at
    away.rename(warehouse)
    assert refresh(other) == Refreshed(catalogs=1, read=1)


@pytest.fixture
def two_lakes(place: Place) -> Iterator[Place]:
    """raw.orders is in both of two lakes, raw.items in one."""
    refresh(place)
    toml = place.folder / "tidegate.toml"
    before = toml.read_text()
    toml.write_text(before + OTHER)
    with opened(place) as (project, control):
        tables = TableCache(project.context.plane, project.name)
        tables.put(control, Endpoint("other", ORDERS), held_facts(place), tables.clock(control))
    yield place
    toml.write_text(before)


def test_a_table_is_found_by_as_much_of_its_name_as_is_clear_and_listed_once(
    two_lakes: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        meant = r"did you mean lake:raw\.items"
        wrong = dict.fromkeys(("raw.itmes", "itmes", "lake:raw.itmes", "lkae:raw.items"), meant)
        for name, said in (wrong | {"nothing.like_it": "tidegate table list --refresh"}).items():
            with pytest.raises(UnknownTable, match=said):
                find_by_name(context, control, name)

        found, after = [], None
        while True:
            page = list_tables(context, control, after=after, limit=1)
            found += [str(one.target) for one in page.tables]
            after = page.next
            if after is None:
                break
        assert found == ["lake:raw.items", "lake:raw.orders", "other:raw.orders"]
        with pytest.raises(UsageError):
            list_tables(context, control, limit=0)
        monkeypatch.setattr(list_tables, "__kwdefaults__", {"after": None, "limit": 1})
        assert [str(one.target) for one in list_all(context, control).tables] == found


def test_a_live_status_is_cached_and_one_of_a_table_that_is_gone_says_so(place: Place) -> None:
    small_files(place, LATE, files=1)
    refresh(place)
    add_files(place, LATE)
    with opened(place) as (project, control):
        table = find_table(project.context, control, "raw", "late")
        assert table.facts is not None
        assert table.facts.data.files == 1
        live = table_status(project.context, control, table, live=True)
        assert live.live
        assert live.facts is not None
        assert live.facts.data.files == 2
        again = find_table(project.context, control, "raw", "late")
        assert again.facts == live.facts
        assert not again.live
        drop(place, LATE)
        with pytest.raises(UnknownTable, match="any more"):
            table_status(project.context, control, table, live=True)
        with pytest.raises(UnknownTable):
            find_table(project.context, control, "raw", "late")


def test_a_cache_that_nobody_refreshes_says_since_when_and_other_versions_are_read_anew(
    place: Place,
) -> None:
    refresh(place)
    place.control.execute(
        "UPDATE tidegate_control.lake_catalogs SET refreshed_at = now() - interval '1 day'",
        "UPDATE tidegate_control.lake_tables SET read_at = now() - interval '2 days'",
    )
    with opened(place) as (project, control):
        table = find_table(project.context, control, "raw", "orders")
    assert "nobody has refreshed" in (table.stale_reason or "")
    assert table.stale_since == table.as_of
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
        again = sweeps.last(control, project.name)
        assert again is not None
        assert replace(again, age_seconds=first.age_seconds) == first
        control.execute("UPDATE tidegate_control.sweeps SET swept_at = now() - interval '1 min'")
        project.sweeper("two").run_once(control)
        last = sweeps.last(control, project.name)
        assert last is not None
        assert last.swept_by == "two"


def losing(place: Place, times: int) -> Callable[[Table], int]:
    """A reader whose files are gone so often, as a commit has come in between."""
    calls = 0

    def read(table: Table) -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            add_files(place)
            raise FileNotFoundError("expired")
        return facts_of(table).data.files

    return read


def test_a_table_is_read_at_one_moment_whatever_others_do_to_it(place: Place) -> None:
    refresh(place)
    before, catalog = files(place), catalog_of(place)
    assert read_consistently(catalog, ORDERS, losing(place, 2)) == before + 2
    with pytest.raises(BusyError, match="faster than it can be read"):
        read_consistently(catalog, ORDERS, losing(place, 99))
    table = open_table(catalog, ORDERS)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (one, *_) = snapshot.manifests(table.io)
    manifest = Path(normal_path(one.manifest_path))
    kept = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(DestinationError, match="names a file that is not there"):
        read_facts(catalog, ORDERS)
    manifest.write_bytes(kept[: len(kept) // 3])
    with pytest.raises(DestinationError, match="cannot be read"):
        read_facts(catalog, ORDERS)
    manifest.write_bytes(kept)


def test_small_is_what_is_small_by_the_size_that_the_project_wants(place: Place) -> None:
    table = open_table(catalog_of(place), ORDERS)
    assert table is not None
    own = facts_of(table)
    assert own.target_file_bytes == 512 * 1024 * 1024
    with place.open() as project:
        wanted = read_target_facts(project.context, TARGET)
    assert wanted is not None
    assert (wanted.target_file_bytes, wanted.small.files) == (1024 * 1024, own.data.files)
    assert facts_of(table, 100).small.files == 0


def estimated(place: Place, project: Project, control: Connection) -> OrphanEstimate:
    tables = {one: held_facts(place, one.relation) for one in (TARGET, ITEMS_TARGET)}
    found = estimate_orphans(project.context, control, tables)
    assert found[ITEMS_TARGET] == OrphanEstimate(None), "another table's attempts are no matter"
    return found[TARGET]


def job(project: Project, control: Connection, kind: str) -> UUID:
    """A job at the table."""
    job_id = uuid4()
    control.execute(
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
        " submitted_by) VALUES (%s, %s, %s, 'orders', %s, '{}', 'test')",
        (job_id, project.name, kind, project.context.destination(TARGET).identify()),
    )
    return job_id


def attempt(project: Project, control: Connection, outcome: str | None, ago: str = "0 s") -> None:
    """An attempt at the table went so."""
    control.execute(
        "INSERT INTO tidegate_control.job_attempts (attempt_id, job_id, worker_id, fence,"
        " finished_at, outcome) VALUES (%s, %s, 'w', 1, now() - %s::interval, %s)",
        (uuid4().hex, job(project, control, "sync"), ago, outcome),
    )


def removed(project: Project, control: Connection, status: str, ago: str) -> None:
    """Orphans were looked for."""
    control.execute(
        "INSERT INTO tidegate_control.job_actions (job_id, position, attempt_id, action, detail,"
        " finished_at) VALUES (%s, 1, 'a', 'remove_orphan_files', %s, now() - %s::interval)",
        (job(project, control, "maintenance"), Jsonb({"status": status}), ago),
    )


def test_attempts_that_went_wrong_and_folders_that_they_noted_count_and_health_tells(
    place: Place,
) -> None:
    refresh(place)
    with opened(place) as (project, control):
        assert estimated(place, project, control) == OrphanEstimate(None)
        for outcome in ("lost", "error", "failed", "done", "cancelled", "given back", None):
            attempt(project, control, outcome)
        found = estimated(place, project, control)
        assert (found.since, found.dead_attempts, found.files) == (None, 3, 3)
        assert found.bytes == pytest.approx(3 * held_facts(place).added_bytes_per_file, abs=1)

        attempt(project, control, "lost", "9 days")
        removed(project, control, "failed", "0 s")
        # A failed removal has removed nothing.
        assert estimated(place, project, control).dead_attempts == 4
        removed(project, control, "done", "30 days")
        removed(project, control, "done", "5 days")
        found = estimated(place, project, control)
        assert found.dead_attempts == 3
        assert found.since is not None

        ledger = project.context.ledger("lake")
        with ledger.connect() as connection:
            folders = StagedFolders(ledger)
            for name in ("one", "two", "taken"):
                noted = StagedFolder(name, f"dead-{name}", "file:/x")
                folders.note(connection, str(TARGET.relation), noted)
            # What a table has taken is no orphan.
            folders.adopt(connection, ["taken"])
        found = estimated(place, project, control)
        assert (found.noted_folders, found.dead_attempts) == (2, 3)

        context = project.context
        Refresher(context).run_once(control)
        one = table_health(context, control, find_table(context, control, "raw", "orders"))
        assert one.health is not None
        (issue,) = [issue for issue in one.health.issues if issue.name == "orphans"]
        assert issue.evidence["dead_attempts"] == 3
        everyone = list_health(context, control, tuple(list_tables(context, control).tables))
        told = {
            str(found.table.target): [issue.name for issue in found.health.issues]
            for found in everyone
            if found.health is not None
        }
        assert "orphans" in told["lake:raw.orders"]
        assert "orphans" not in told["lake:raw.items"]
