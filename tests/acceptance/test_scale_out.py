"""The same project on a cluster of executors and on a Spark Connect server, killed and exact."""

from __future__ import annotations

import signal

import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.scale_out import SCENARIOS, write_modules

# None: the Spark Connect server that the tests start.
CLUSTERS = [
    pytest.param({"master": "local-cluster[2,1,1024]"}, id="local-cluster"),
    pytest.param(None, id="connect"),
]


def make(make_scene: MakeScene, spark: dict[str, str] | None = None) -> Scene:
    scene = make_scene(2, spark=spark)
    write_modules(scene)
    return scene


def kill_at(scene: Scene, name: str, failpoint: str) -> None:
    ended = scene.start(name, f"{failpoint}=kill").wait()
    assert ended.code == -signal.SIGKILL, ended


def run_all(scene: Scene) -> None:
    first, *others = (scenario.name for scenario in SCENARIOS)
    ended = scene.start(first, options=tuple(others)).wait()
    assert ended.code == 0, ended


@pytest.mark.parametrize("spark", CLUSTERS)
def test_every_movement_is_exact_after_kills(
    make_scene: MakeScene, spark: dict[str, str] | None
) -> None:
    scene = make(make_scene, spark)
    scene.change(6)
    for scenario in SCENARIOS:
        kill_at(scene, scenario.name, scenario.point)
        scene.change()
    run_all(scene)
    for scenario in SCENARIOS:
        scenario.check(scene)
    scene.assert_swept()
