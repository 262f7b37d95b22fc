"""Maintenance while others commit to the same table: nothing of theirs, and no row, is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from acceptance.proxy import Cut
from databases import Databases
from integration.conftest import MakePlace, Place, WarmSpark
from integration.filled_lakes import open_table, schema_of
from integration.lakes import change
from integration.maintained import (
    add_file,
    data_files,
    grow,
    ids,
    location,
    maintain,
    order_of,
    small_files_place,
)
from integration.shared_places import shared_places
from integration.test_lake_commit_lost import CatalogProxy
from tidegate.core.table_actions import Action
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.engines import EngineSession, SparkEngine
from tidegate.jobs.cancel import cancel_job
from tidegate.maintenance import runner
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project


class ProxiedEngine(SparkEngine):
    """Spark reaches the catalog through a proxy, and nothing else does."""

    port = 0

    def session(self, catalog: Catalog, attempt_id: str) -> AbstractContextManager[EngineSession]:
        address = make_conninfo(catalog.control(), port=self.port)
        return super().session(replace(catalog, control=lambda: address), attempt_id)


@dataclass(slots=True)
class Scene:
    """A table of small files, and the proxy before its catalog."""

    place: Place
    project: Project
    proxy: CatalogProxy
    left: set[str]
    """data files that earlier races have left behind"""

    def metadata(self) -> str:
        return open_table(self.place).metadata_location

    def new_unknown_files(self) -> set[str]:
        return unknown_files(self.place) - self.left

    def noted(self) -> list[tuple[bool, int]]:
        """Whether an attempt holds the table, and how many of its commits are remembered."""
        return self.place.control.execute(
            sql.SQL(
                "SELECT f.attempt_id IS NOT NULL, count(*) FROM {0}.catalog_moves m"
                " LEFT JOIN {0}.fences f USING (attempt_id) GROUP BY m.attempt_id, 1"
            ).format(sql.Identifier(schema_of(self.place)))
        )


def unknown_files(place: Place) -> set[str]:
    """Data files that lie below the table and are not part of it."""
    known = open_table(place).inspect.all_files()["file_path"].to_pylist()
    there = {file.name for file in (location(place) / "data").glob("**/*.parquet")}
    return there - {Path(one).name for one in known}


@pytest.fixture(scope="module")
def table(
    kept_databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
    warm_spark: WarmSpark,
) -> Iterator[tuple[Place, Project]]:
    """One table for all races."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("races")) as make:
        place = small_files_place(make, 1, databases=1)
        yield place, place.open(warm_spark)


@pytest.fixture
def scene(
    table: tuple[Place, Project], server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    proxy = CatalogProxy(server.port, Cut.BEFORE_ANSWER)
    monkeypatch.setattr(ProxiedEngine, "port", proxy.port)
    monkeypatch.setattr(runner, "engine_of", lambda context: ProxiedEngine(context.spark))
    grow(table[0], 4)
    yield Scene(*table, proxy, unknown_files(table[0]))
    proxy.close()


def delete_first(scene: Scene) -> int:
    """Somebody removes a row, with the file that it was in if it has one of its own."""
    first = ids(scene.place)[0]
    open_table(scene.place).delete(f"id = {first}")
    return first


def test_a_race_that_was_lost_to_an_append_costs_no_second_rewrite(scene: Scene) -> None:
    before = ids(scene.place)

    def append(number: int) -> None:
        if number <= 2:
            add_file(scene.place, before[-1] + number)

    scene.proxy.before_commit = append
    done = maintain(scene.project, order_of(Action.REWRITE_DATA_FILES))
    assert (done.status, done.error) == ("done", None)
    assert scene.proxy.seen == 3
    assert ids(scene.place) == [*before, before[-1] + 1, before[-1] + 2]
    assert data_files(scene.place) == 3
    assert scene.new_unknown_files() == set()
    assert scene.noted() == [(True, 1)]
    assert maintain(scene.project, order_of(Action.REWRITE_DATA_FILES)).status == "done"
    assert scene.noted() == [(True, 1)]


def rare(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.chaos)


@pytest.mark.parametrize(
    ("action", "external"),
    [
        (Action.REWRITE_DATA_FILES, True),
        (Action.EXPIRE_SNAPSHOTS, False),
        rare(Action.REWRITE_DATA_FILES, False),
        rare(Action.EXPIRE_SNAPSHOTS, True),
        rare(Action.REWRITE_POSITION_DELETE_FILES, False),
        rare(Action.REWRITE_POSITION_DELETE_FILES, True),
        rare(Action.REWRITE_MANIFESTS, False),
        rare(Action.REWRITE_MANIFESTS, True),
    ],
)
def test_a_commit_that_got_through_and_is_sent_again_is_not_taken_for_a_lost_race(
    scene: Scene, action: Action, external: bool
) -> None:
    if action is Action.REWRITE_POSITION_DELETE_FILES:
        first = ids(scene.place)[-1] + 1
        change(
            scene.project,
            "ALTER TABLE lake.raw.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read',"
            " 'write.delete.granularity' = 'partition')",
            "INSERT INTO lake.raw.orders SELECT /*+ REPARTITION(1) */ id, id, now()"
            f" FROM range({first}, {first + 10})",
            f"DELETE FROM lake.raw.orders WHERE id = {first + 1}",
            f"DELETE FROM lake.raw.orders WHERE id = {first + 3}",
        )
    before = ids(scene.place)
    new = [before[-1] + 1] if external else []
    scene.proxy.cut_at = 1
    if external:
        scene.proxy.before_cut = lambda: add_file(scene.place, *new)
    done = maintain(scene.project, order_of(action))
    assert (done.status, done.error) == ("done", None)
    assert scene.proxy.cuts == 1
    assert ids(scene.place) == [*before, *new]
    if action is not Action.EXPIRE_SNAPSHOTS:
        # Whoever sends an expiry again does not know any more what it had to delete.
        assert scene.new_unknown_files() == set()


def test_a_rewrite_whose_files_were_changed_meanwhile_is_done_again(scene: Scene) -> None:
    before = ids(scene.place)

    def change_once(number: int) -> None:
        if number == 1:
            delete_first(scene)

    scene.proxy.before_commit = change_once
    done = maintain(scene.project, order_of(Action.REWRITE_DATA_FILES))
    assert (done.status, done.error) == ("done", None)
    assert ids(scene.place) == before[1:]
    assert data_files(scene.place) == 1
    assert scene.new_unknown_files() == set()


@pytest.mark.chaos
def test_a_table_that_is_changed_all_the_time_fails_one_action_and_the_next_still_run(
    scene: Scene,
) -> None:
    rewrites: list[int] = []
    expected = set(ids(scene.place))

    def change_always(number: int) -> None:
        # Each try commits upon what it has read, and again upon what it finds then.
        if len(rewrites) < 3 and number not in rewrites:
            rewrites.append(number)
            expected.remove(delete_first(scene))
            for _ in range(2):
                new = max(expected) + 1
                add_file(scene.place, new)
                expected.add(new)

    scene.proxy.before_commit = change_always
    order = order_of(Action.REWRITE_DATA_FILES, Action.REWRITE_MANIFESTS)
    done = maintain(scene.project, order)
    assert done.status == "failed"
    assert [one.detail["status"] for one in done.actions] == ["failed", "done"]
    message = str(done.error)
    assert message.startswith("1 of 2 actions failed: rewrite_data_files: raw.orders was changed ")
    assert "done: rewrite_manifests" in message
    assert "when less is written to the table" in done.actions[0].detail["error"]
    assert ids(scene.place) == sorted(expected)
    assert scene.new_unknown_files() == set()


@pytest.mark.parametrize(
    "action",
    [Action.REWRITE_DATA_FILES, rare(Action.EXPIRE_SNAPSHOTS), rare(Action.REWRITE_MANIFESTS)],
)
def test_a_zombies_commit_is_refused(scene: Scene, action: Action) -> None:
    before, rows = scene.metadata(), ids(scene.place)
    context = scene.project.context
    newest = "SELECT {} FROM tidegate_control.jobs ORDER BY submitted_at DESC LIMIT 1"

    def cancel(number: int) -> None:
        if number == 1:
            job_id = scene.place.control.value(newest.format("job_id"))
            with context.plane.connect() as control:
                cancel_job(context, control, job_id, actor="test")

    scene.proxy.before_commit = cancel
    done = maintain(scene.project, order_of(action))
    assert (done.status, done.actions) == ("stale", [])
    assert scene.metadata() == before
    assert ids(scene.place) == rows
    assert scene.place.control.value(newest.format("status")) == "cancelled"
    assert maintain(scene.project, order_of(action)).status == "done"
    assert ids(scene.place) == rows


def send(place: Place, attempt_id: str, session: str, base: str | None = None) -> int:
    """What Iceberg's driver sends for a commit, over a connection of its own; 1 if it got in."""
    tables = sql.Identifier(schema_of(place), "iceberg_tables")
    text = sql.SQL("UPDATE {} SET metadata_location = {} WHERE metadata_location = {}")
    options = f"-c tidegate.attempt={attempt_id} -c tidegate.maintains={session}"
    with place.control.connect(options=options) as connection:
        now = open_table(place).metadata_location
        return connection.execute(text.format(tables, now, base or now)).rowcount


def test_only_a_session_that_committed_over_another_connection_may_not_lose_a_race(
    make_place: MakePlace,
) -> None:
    place = small_files_place(make_place, 1, databases=1)
    ledger = place.open().context.ledger("lake")

    def hold(attempt_id: str) -> None:
        place.control.execute(
            sql.SQL("DELETE FROM {}.fences").format(ledger.schema_identifier),
            sql.SQL("INSERT INTO {}.fences VALUES ('raw.orders', {}, 1, {})").format(
                ledger.schema_identifier, uuid4(), attempt_id
            ),
        )

    hold("mine")
    assert send(place, "mine", "a", "elsewhere") == 0
    assert send(place, "mine", "a") == 1
    with pytest.raises(psycopg.Error, match="another commit came first") as raised:
        send(place, "mine", "a", "elsewhere")
    assert raised.value.sqlstate == "TG002"
    # Another session of the same attempt has sent nothing that could be sent again.
    assert send(place, "mine", "b", "elsewhere") == 0
    with place.control.connect(options="-c tidegate.attempt=mine") as load:
        lost = sql.SQL("UPDATE {}.iceberg_tables SET metadata_location = 'x' WHERE false")
        with pytest.raises(psycopg.Error, match="another commit came first"):
            load.execute(lost.format(ledger.schema_identifier))
    # Of a replaced attempt nobody knows any more what it has committed.
    hold("newer")
    with pytest.raises(psycopg.Error, match="another commit came first"):
        send(place, "mine", "b", "elsewhere")
