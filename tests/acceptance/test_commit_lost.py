"""The connection is cut at COMMIT; the marker says whether the load is in, nobody guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from acceptance.conftest import MakeScene
from acceptance.proxy import Cut, Proxy
from conftest import MakeDatabase
from tidegate.postgres.embedded import EmbeddedServer

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
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("cut", list(Cut))
def test_every_commit_of_several_runs_is_lost_once(
    make_scene: MakeScene, make_proxy: MakeProxy, cut: Cut
) -> None:
    proxy, destination = make_proxy(cut, 6)
    scene = make_scene(2, destination=destination, batch_rows=15)
    for _ in range(3):
        scene.run()
        scene.change()
    scene.run()
    assert proxy.cuts == 6
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("cut", list(Cut))
def test_killed_while_it_resolves_a_lost_commit(
    make_scene: MakeScene, make_proxy: MakeProxy, cut: Cut
) -> None:
    proxy, destination = make_proxy(cut, 1)
    scene = make_scene(2, destination=destination)
    ended = scene.start(failpoint="publish.fenced@2=kill").wait()
    assert ended.code < 0, ended
    assert proxy.cuts == 1
    scene.run()
    scene.assert_exact()
    scene.assert_swept()
