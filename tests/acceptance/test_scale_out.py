"""The same project on a cluster of executors and on a Spark Connect server, killed and exact."""

from __future__ import annotations

import signal

import pytest

from acceptance.conftest import CONNECT, MakeScene
from acceptance.harness import Scene
from acceptance.scale_out import SCENARIOS, Scenario, check_transformed, write_modules
from acceptance.spark_server import SparkServer
from acceptance.test_named_points import IN_PROCESS

LOCAL_CLUSTER = {"master": "local-cluster[2,1,1024]"}


def make(make_scene: MakeScene, spark: dict[str, str] = CONNECT) -> Scene:
    scene = make_scene(2, spark=spark, batch_rows=60)
    write_modules(scene)
    return scene


def kill_at(scene: Scene, name: str, failpoint: str) -> None:
    ended = scene.start(name, f"{failpoint}=kill").wait()
    assert ended.code == -signal.SIGKILL, ended


def run_all(scene: Scene) -> None:
    first, *others = (scenario.name for scenario in SCENARIOS)
    ended = scene.start(first, options=tuple(others)).wait()
    assert ended.code == 0, ended


# A Spark that is started for each run takes its time, so there one kill must do.
@pytest.mark.parametrize(
    ("spark", "killed"),
    [
        pytest.param(LOCAL_CLUSTER, SCENARIOS[-1:], id="local-cluster"),
        pytest.param(CONNECT, SCENARIOS, id="connect"),
    ],
)
def test_every_movement_is_exact_after_kills(
    make_scene: MakeScene, spark: dict[str, str], killed: tuple[Scenario, ...]
) -> None:
    scene = make(make_scene, spark)
    scene.change()
    for scenario in killed:
        kill_at(scene, scenario.name, scenario.point)
        scene.change()
    run_all(scene)
    for scenario in SCENARIOS:
        scenario.check(scene)
    scene.assert_swept()


def test_a_changed_module_is_seen_by_the_next_run_on_the_same_server(
    make_scene: MakeScene,
) -> None:
    scene = make(make_scene)
    scene.run("priced")
    check_transformed(scene)
    (scene.folder / "money" / "__init__.py").write_text("FACTOR = 10\n")
    ended = scene.start("priced", options=("--full-refresh",)).wait()
    assert ended.code == 0, ended
    check_transformed(scene, factor=10)


NO_TIDEGATE = """\
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == "tidegate":
            raise ModuleNotFoundError("No module named 'tidegate'")

sys.meta_path.insert(0, Refusing())
"""
OTHER_TIDEGATE = """\
import tidegate.version

tidegate.version.__version__ = "0.0.7"
"""
OTHER_PYTHON = """\
import sys
from collections import namedtuple

version = namedtuple("version", "major minor micro releaselevel serial")
sys.version_info = version(3, 99, 0, "final", 0)
"""


LACKS = {
    "tidegate for copying": (NO_TIDEGATE, "orders", "Spark's workers cannot import tidegate"),
    "tidegate for code": (NO_TIDEGATE, "priced", "Spark's workers cannot import tidegate"),
    "our tidegate": (OTHER_TIDEGATE, "orders", "workers have tidegate 0.0.7, but this is tidegate"),
    "our python": (OTHER_PYTHON, "orders", "workers run Python 3.99, but this is Python 3."),
}


SHORT = "tidegate for copying"


@pytest.mark.parametrize(
    ("workers", "name", "message"),
    [
        pytest.param(*LACKS[lack], id=lack, marks=() if lack == SHORT else pytest.mark.chaos)
        for lack in LACKS
    ],
)
def test_what_the_workers_lack_is_said_in_one_line(
    make_scene: MakeScene, spark_server: SparkServer, workers: str, name: str, message: str
) -> None:
    scene = make(make_scene)
    with spark_server.broken(workers):
        ended = scene.start(name).wait()
    assert ended.code == 1, ended
    assert message in ended.err, ended
    assert "docs/cluster.md" in ended.err, ended
    assert len(ended.err.splitlines()) <= 3, ended


def test_a_column_that_is_not_there_is_the_fault_of_the_transformation(
    make_scene: MakeScene,
) -> None:
    scene = make(make_scene)
    source = (scene.folder / "pipelines.py").read_text().replace('"seq", ', '"nosuch", ')
    (scene.folder / "pipelines.py").write_text(source)
    ended = scene.start("priced").wait()
    assert ended.code == 1, ended
    assert "the transformation of sync priced failed" in ended.err, ended
    assert "nosuch" in ended.err, ended
    assert "Traceback" not in ended.err, ended


@pytest.mark.chaos
@pytest.mark.parametrize("point", IN_PROCESS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("spark", [LOCAL_CLUSTER, CONNECT], ids=["local-cluster", "connect"])
def test_every_movement_is_exact_after_a_kill_at_every_point(
    make_scene: MakeScene, spark: dict[str, str], scenario: Scenario, point: str
) -> None:
    scene = make(make_scene, spark)
    scene.change(6)
    kill_at(scene, scenario.name, point)
    scene.change()
    scene.run(scenario.name)
    scene.change()
    kill_at(scene, scenario.name, point)
    run_all(scene)
    for each in SCENARIOS:
        each.check(scene)
    scene.assert_swept()
