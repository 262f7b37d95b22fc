"""Maintenance while others commit to the same table: nothing of theirs, and no row, is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from acceptance.proxy import Cut
from integration.conftest import MakePlace, Place
from integration.filled_lakes import open_table, schema_of
from integration.lakes import change
from integration.maintained import (
    add_file,
    data_files,
    ids,
    location,
    maintain,
    order_of,
    small_files_place,
)
from integration.test_lake_commit_lost import CatalogProxy
from tidegate.lake.catalog import Catalog
from tidegate.lake.engine import EngineSession, SparkEngine
from tidegate.model.maintenance import Action
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project
from tidegate.runtime import maintaining_here
from tidegate.runtime.cancel import cancel_job
from tidegate.spark.session import SparkSessions

COMMITTING = tuple(one for one in Action if one is not Action.REMOVE_ORPHAN_FILES)


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

    def metadata(self) -> str:
        return open_table(self.place).metadata_location

    def unknown_files(self) -> set[str]:
        """Data files that lie below the table and are not part of it."""
        known = open_table(self.place).inspect.all_files()["file_path"].to_pylist()
        there = {file.name for file in (location(self.place) / "data").glob("**/*.parquet")}
        return there - {Path(one).name for one in known}

    def noted(self) -> int:
        """How many commits the catalog still remembers."""
        moves = sql.Identifier(schema_of(self.place), "catalog_moves")
        return int(self.place.control.value(sql.SQL("SELECT count(*) FROM {}").format(moves)))


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene(
    make_place: MakePlace,
    warm_spark: SparkSessions,
    server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MakeScene]:
    made: list[CatalogProxy] = []

    def make(cut: Cut = Cut.BEFORE_COMMIT) -> Scene:
        proxy = CatalogProxy(server.port, cut)
        made.append(proxy)
        monkeypatch.setattr(ProxiedEngine, "port", proxy.port)
        monkeypatch.setattr(
            maintaining_here, "engine_of", lambda context: ProxiedEngine(context.spark)
        )
        place = small_files_place(make_place, 4)
        return Scene(place, place.open(warm_spark), proxy)

    yield make
    for proxy in made:
        proxy.close()


def test_a_race_that_was_lost_to_an_append_costs_no_second_rewrite(make_scene: MakeScene) -> None:
    scene = make_scene()

    def append(number: int) -> None:
        if number <= 2:
            add_file(scene.place, 100 + number)

    scene.proxy.before_commit = append
    done = maintain(scene.project, order_of(Action.REWRITE_DATA_FILES))
    assert (done.status, done.error) == ("done", None)
    assert scene.proxy.seen == 3
    assert ids(scene.place) == [0, 1, 2, 3, 101, 102]
    assert data_files(scene.place) == 3
    assert scene.unknown_files() == set()
    assert scene.noted() == 0


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("action", COMMITTING)
def test_a_commit_that_got_through_and_is_sent_again_is_not_taken_for_a_lost_race(
    make_scene: MakeScene, action: Action, external: bool
) -> None:
    scene = make_scene(Cut.BEFORE_ANSWER)
    if action is Action.REWRITE_POSITION_DELETE_FILES:
        change(
            scene.project,
            "ALTER TABLE lake.raw.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read',"
            " 'write.delete.granularity' = 'partition')",
            "INSERT INTO lake.raw.orders SELECT /*+ REPARTITION(1) */ id, id, now()"
            " FROM range(10, 20)",
            "DELETE FROM lake.raw.orders WHERE id = 11",
            "DELETE FROM lake.raw.orders WHERE id = 13",
        )
    before = ids(scene.place)
    scene.proxy.cut_at = 1
    if external:
        scene.proxy.before_cut = lambda: add_file(scene.place, 100)
    done = maintain(scene.project, order_of(action))
    assert (done.status, done.error) == ("done", None)
    assert scene.proxy.cuts == 1
    assert ids(scene.place) == sorted([*before, *([100] if external else [])])
    assert scene.unknown_files() == set()


def delete_first(scene: Scene, number: int) -> None:
    """Somebody removes a row, with the file that it was in."""
    open_table(scene.place).delete(f"id = {number - 1}")


def test_a_rewrite_whose_files_were_changed_meanwhile_is_done_again(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.proxy.before_commit = lambda number: delete_first(scene, number) if number == 1 else None
    done = maintain(scene.project, order_of(Action.REWRITE_DATA_FILES))
    assert (done.status, done.error) == ("done", None)
    assert ids(scene.place) == [1, 2, 3]
    assert data_files(scene.place) == 1
    assert scene.unknown_files() == set()


def test_a_table_that_is_changed_all_the_time_fails_one_action_and_the_next_still_run(
    make_scene: MakeScene,
) -> None:
    scene = make_scene()
    rewrites: list[int] = []

    def change_always(number: int) -> None:
        # Each try commits upon what it has read, and again upon what it finds then.
        if len(rewrites) < 3 and number not in rewrites:
            rewrites.append(number)
            delete_first(scene, len(rewrites))
            add_file(scene.place, 200 + 2 * len(rewrites))
            add_file(scene.place, 201 + 2 * len(rewrites))

    scene.proxy.before_commit = change_always
    order = order_of(Action.REWRITE_DATA_FILES, Action.REWRITE_MANIFESTS)
    done = maintain(scene.project, order)
    assert done.status == "failed"
    assert [one.detail["status"] for one in done.actions] == ["failed", "done"]
    message = str(done.error)
    assert message.startswith("1 of 2 actions failed: rewrite_data_files: raw.orders was changed ")
    assert "done: rewrite_manifests" in message
    assert "when less is written to the table" in done.actions[0].detail["error"]
    assert ids(scene.place) == [3, *range(202, 208)]
    assert scene.unknown_files() == set()


@pytest.mark.parametrize(
    "action", [Action.REWRITE_DATA_FILES, Action.EXPIRE_SNAPSHOTS, Action.REWRITE_MANIFESTS]
)
def test_a_zombies_commit_is_refused(make_scene: MakeScene, action: Action) -> None:
    scene = make_scene()
    before, rows = scene.metadata(), ids(scene.place)
    context = scene.project.context

    def cancel(number: int) -> None:
        if number == 1:
            (job_id,) = scene.place.control.execute(
                "SELECT job_id FROM tidegate_control.jobs WHERE status = 'running'"
            )[0]
            with context.plane.connect() as control:
                cancel_job(context, control, job_id, actor="test")

    scene.proxy.before_commit = cancel
    done = maintain(scene.project, order_of(action))
    assert (done.status, done.actions) == ("stale", [])
    assert scene.metadata() == before
    assert ids(scene.place) == rows
    states = scene.place.control.execute("SELECT status FROM tidegate_control.jobs")
    assert states == [("cancelled",)]
    assert maintain(scene.project, order_of(action)).status == "done"
    assert ids(scene.place) == rows
