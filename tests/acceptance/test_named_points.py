"""SIGKILL at every named point of a load; the next run makes everything right."""

from __future__ import annotations

import pytest

from acceptance.conftest import CONNECT, LOCAL, MakeScene
from acceptance.harness import Scene
from acceptance.processes import Ended, assert_killed
from acceptance.spark_server import SparkServer
from tidegate.core.failpoints import POINTS

# These are passed in Spark's Python workers, which see our environment in local mode only; those
# of a server that runs already are armed there.
IN_WORKERS = ("stage.write", "stage.written")
# A run does not pass these.
ELSEWHERE = (
    *("adopt.", "vacuum.", "cancel.", "maintenance.", "action.", "orphans.", "tick.", "state."),
    *("notice.", "slot.", "changes.", "event.", "job.settling"),
)
# These are passed only when the target has to change.
IN_EVOLUTION = ("evolve.changed", "evolve.done")
# Each destination has its own way to publish; it is committed in the end.
INTO_POSTGRES = ("publish.fenced", "publish.marked", "publish.applied", "publish.moved")
INTO_LAKE = (
    "branch.created",
    "branch.staged",
    "intent.noted",
    "branch.forwarded",
    "branch.dropped",
)
_EVERYWHERE = tuple(
    point
    for point in POINTS
    if point not in (*IN_WORKERS, *IN_EVOLUTION) and not point.startswith(ELSEWHERE)
)
IN_PROCESS = tuple(point for point in _EVERYWHERE if point not in INTO_LAKE)
IN_LAKE = tuple(point for point in _EVERYWHERE if point not in INTO_POSTGRES)
ONCE = ("job.submitted", "job.claimed", "fence.raised", "job.finishing", "job.finished")
ABOUT_THE_COMMIT = ("stage.done", "publish.applied", "publish.committed")


def kill_at(scene: Scene, point: str, passage: int = 1) -> None:
    """A run that dies at a point: by its own hand, or because its Spark worker did."""
    process = scene.start(failpoint=f"{point}@{passage}=kill")
    if point in IN_WORKERS:
        assert_worker_died(process.wait())
    else:
        assert_killed(process, point)


def assert_worker_died(ended: Ended) -> None:
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err, ended
    assert "Python worker exited unexpectedly" in ended.err, ended


def kill_workers(scene: Scene, spark_server: SparkServer) -> None:
    """Runs on a server whose workers die, one at each of their points."""
    for point in IN_WORKERS:
        with spark_server.armed(f"{point}=kill"):
            assert_worker_died(scene.start().wait())


def finish(scene: Scene) -> None:
    scene.run()
    scene.assert_swept()


def test_killed_at_every_named_point_one_after_the_other(make_scene: MakeScene) -> None:
    """Each run takes up what the last one left, and dies a point later."""
    scene = make_scene(2)
    for point in IN_PROCESS:
        scene.change(1)
        kill_at(scene, point)
        if point.startswith("publish."):
            scene.assert_ledger()
    finish(scene)
    scene.at_source(
        "ALTER TABLE orders ADD extra text, ALTER total TYPE numeric(14,2)",
        "UPDATE orders SET extra = id::text, updated_at = now()",
    )
    scene.columns += ("extra",)
    for point in IN_EVOLUTION:
        kill_at(scene, point)
    finish(scene)


def test_a_dead_spark_worker_fails_the_run_and_nothing_else(
    make_scene: MakeScene, spark_server: SparkServer
) -> None:
    """Workers of a Spark of its own are killed by make chaos."""
    scene = make_scene(2, spark=CONNECT)
    kill_workers(scene, spark_server)
    finish(scene)


@pytest.mark.parametrize("databases", [1, pytest.param(3, marks=pytest.mark.chaos)])
def test_killed_with_everything_in_one_place_or_three(
    make_scene: MakeScene, databases: int
) -> None:
    scene = make_scene(databases)
    for point in ABOUT_THE_COMMIT:
        kill_at(scene, point)
        scene.change(1)
    finish(scene)


@pytest.mark.chaos
@pytest.mark.parametrize(
    "point", ["batch.planned", "stage.done", "publish.moved", "publish.committed"]
)
def test_killed_together_with_its_jvm(
    make_scene: MakeScene, spark_server: SparkServer, point: str
) -> None:
    scene = make_scene(2, spark=LOCAL)
    process, _ = scene.start_and_hold(point)
    process.kill_all()
    scene.use_spark({"remote": spark_server.url})
    finish(scene)


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("point", IN_PROCESS)
def test_killed_in_first_and_later_batches_of_first_and_later_runs(
    make_scene: MakeScene, point: str, databases: int
) -> None:
    scene = make_scene(databases, batch_rows=15)
    for _ in ("first", "later"):
        for passage in (1,) if point in ONCE else (1, 2):
            scene.change()
            kill_at(scene, point, passage)
        scene.run()
        scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("point", IN_WORKERS)
def test_spark_workers_killed_in_first_and_later_runs(
    make_scene: MakeScene, point: str, databases: int
) -> None:
    scene = make_scene(databases, spark=LOCAL)
    kill_at(scene, point)
    scene.run()
    scene.change()
    kill_at(scene, point)
    finish(scene)
