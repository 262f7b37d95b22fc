"""A server crashes, or the line to it breaks at COMMIT: no row is lost, and nobody guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.proxy import Cut, Proxy
from conftest import MakeDatabase
from tidegate.postgres.embedded import EmbeddedServer


def crash(server: EmbeddedServer) -> None:
    assert server.stop("immediate")
    server.start()


def staged_rows(scene: Scene) -> int:
    """Crash recovery empties what was staged, and only that."""
    return sum(
        oracle.scalar(scene.destination, f'SELECT count(*) FROM tidegate."{table}"')
        for table in oracle.staging_tables(scene.destination)
    )


def test_the_same_run_stages_again_and_waits_for_a_server_that_is_down(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, destination=doomed.conninfo())
    process, flag = scene.start_and_hold("check.done")
    assert staged_rows(scene) > 0
    crash(doomed)
    assert staged_rows(scene) == 0
    flag.unlink()
    ended = process.wait()
    assert ended.code == 0, ended
    scene.assert_exact()
    scene.change()
    process, flag = scene.start_and_hold("publish.applied")
    assert doomed.stop("immediate")
    flag.unlink()
    doomed.start()
    ended = process.wait()
    assert ended.code == 0, ended
    scene.assert_swept()


def crash_at(scene: Scene, server: EmbeddedServer, point: str) -> None:
    """The run may fail, for its snapshot is gone perhaps; the next one finishes."""
    process, flag = scene.start_and_hold(point)
    crash(server)
    flag.unlink()
    ended = process.wait()
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err, ended
    scene.run()
    scene.assert_swept()


@pytest.mark.parametrize(
    "point",
    [
        "publish.committed",
        *(
            pytest.param(point, marks=pytest.mark.chaos)
            for point in ("stage.done", "check.done", "publish.marked", "publish.moved")
        ),
    ],
)
def test_everything_on_the_crashed_server(
    make_scene: MakeScene, doomed: EmbeddedServer, point: str
) -> None:
    everything = doomed.conninfo()
    scene = make_scene(1, source=everything, destination=everything, control=everything)
    crash_at(scene, doomed, point)


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["stage.done", "publish.fenced", "publish.moved"])
@pytest.mark.parametrize("when", ["first load", "later load"])
def test_the_server_crashes_at_other_points(
    make_scene: MakeScene, doomed: EmbeddedServer, point: str, when: str
) -> None:
    scene = make_scene(2, destination=doomed.conninfo())
    if when == "later load":
        scene.run()
        scene.change()
    crash_at(scene, doomed, point)


@pytest.mark.chaos
def test_the_control_database_crashes_during_a_run(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    crash_at(make_scene(2, control=doomed.conninfo()), doomed, "publish.applied")


MakeProxy = Callable[[Cut, int], tuple[Proxy, str]]


@pytest.fixture
def make_proxy(server: EmbeddedServer, make_database: MakeDatabase) -> Iterator[MakeProxy]:
    """A maker of proxies, each in front of a database of its own."""
    made: list[Proxy] = []

    def make(cut: Cut, times: int) -> tuple[Proxy, str]:
        proxy = Proxy(server.port, cut, "tidegate publish", times)
        made.append(proxy)
        return proxy, make_conninfo(make_database("warehouse"), port=proxy.port)

    yield make
    for proxy in made:
        proxy.close()


@pytest.mark.parametrize("cut", list(Cut))
def test_a_lost_commit_is_resolved_by_the_marker(
    make_scene: MakeScene, make_proxy: MakeProxy, cut: Cut
) -> None:
    proxy, destination = make_proxy(cut, 1)
    scene = make_scene(2, destination=destination)
    ended = scene.run()
    assert proxy.cuts == 1
    assert ("was already in" in ended.out) == (cut is Cut.BEFORE_ANSWER), ended
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("cut", list(Cut))
def test_every_commit_of_several_runs_is_lost_once_and_one_is_killed_meanwhile(
    make_scene: MakeScene, make_proxy: MakeProxy, cut: Cut
) -> None:
    proxy, destination = make_proxy(cut, 6)
    scene = make_scene(2, destination=destination, batch_rows=15)
    scene.kill_at("publish.fenced@2", "run", "orders")
    assert proxy.cuts == 1
    for _ in range(4):
        scene.run()
        scene.change()
    scene.run()
    assert proxy.cuts == 6
    scene.assert_swept()
