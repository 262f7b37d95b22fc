"""SIGKILL on the way into a lake: the next run finds out how far the dead one got."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from acceptance import oracle
from acceptance.conftest import LOCAL, MakeScene
from acceptance.spark_server import SparkServer
from acceptance.test_modes_killed import Expected, finish, make
from acceptance.test_named_points import IN_LAKE, IN_WORKERS, kill_at, kill_workers
from acceptance.test_random_kills import kill_after, kill_at_random, settle_and_finish
from chaos_seeds import chosen

ABOUT_ITS_COMMIT = (
    "branch.created",
    "branch.staged",
    "intent.noted",
    "branch.forwarded",
    "publish.committed",
    "branch.dropped",
)
# Main moves between the second and the third.
AROUND_MAIN = ABOUT_ITS_COMMIT[1:5]
MAIN_HAS_MOVED = ("branch.forwarded", "publish.committed", "branch.dropped")
WHERE_ROWS_COULD_DOUBLE = ("branch.staged", "branch.forwarded", "publish.committed")
BEFORE_AND_AFTER = tuple(point for point in IN_LAKE if point not in ABOUT_ITS_COMMIT)
LAKE_MODES = ("merge", "append", "delete_insert", "replace", "replace without a key")
# Of these small tables, all of it warm; each statement of Spark's takes a while.
RUN_SECONDS = 4.0


def test_killed_over_and_over_at_its_first_load(
    make_scene: MakeScene, spark_server: SparkServer
) -> None:
    """A dead Spark worker fails the run and nothing else; those of a Spark of its own die in chaos.

    Files that come after the sweep of a dead run, from workers that outlived it, go later.
    """
    expected = make(make_scene, "append", lake=True, batch_rows=25)
    scene = expected.scene
    kill_workers(scene, spark_server)
    kill_at(scene, "stage.done")
    (staged,) = {str(Path(file).parent) for file in scene.staged()}
    for point in ABOUT_ITS_COMMIT:
        kill_at(scene, point)
    finish(expected)
    assert scene.staged() == []
    late = scene.files.data("orders") / staged / "late.parquet"
    late.parent.mkdir()
    late.touch()
    assert scene.staged() == [str(Path(staged) / late.name)]
    scene.assert_nothing_staged()
    expected.assert_exact()
    assert not late.parent.exists()


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ("merge", AROUND_MAIN),
        pytest.param("append", WHERE_ROWS_COULD_DOUBLE, marks=pytest.mark.chaos),
    ],
)
def test_killed_about_its_commit_at_one_point_after_the_other(
    make_scene: MakeScene, mode: str, points: tuple[str, ...]
) -> None:
    """Each run that is killed has first healed the one before it."""
    expected = make(make_scene, mode, lake=True, batch_rows=10_000)
    trace_points(expected)
    for point in points:
        expected.change()
        # A session that still reads holds back the newest rows.
        oracle.wait_until_left(expected.scene.source)
        kill_at(expected.scene, point)
        if point in MAIN_HAS_MOVED:
            expected.loaded()
        elif mode == "append":
            # The batch of a dead run is loaded as it was planned, without what came since.
            finish(expected)
    finish(expected)
    expected.scene.assert_nothing_staged()


def trace_points(expected: Expected) -> None:
    """A first run, which is not killed, passes all points that others are killed at."""
    scene = expected.scene
    trace = scene.folder / "trace"
    ended = scene.start(failpoint=f"*=trace:{trace}").wait()
    assert ended.code == 0, ended
    passed = [point for point in trace.read_text().split() if point not in IN_WORKERS]
    assert sorted(passed) == sorted(IN_LAKE)
    assert passed[passed.index("branch.created") :][:6] == list(ABOUT_ITS_COMMIT)
    expected.loaded()
    expected.assert_exact()
    assert scene.assert_ledger() == 1
    scene.assert_nothing_staged()


@pytest.mark.chaos
def test_killed_before_and_after_it_publishes(make_scene: MakeScene) -> None:
    scene = make_scene(3, lake=True, batch_rows=10_000)
    for point in BEFORE_AND_AFTER:
        kill_at(scene, point)
        scene.change(1)
    scene.run()
    scene.assert_swept()


def killed_with_its_jvm(make_scene: MakeScene, remote: str, *points: str) -> None:
    """In a Spark of its own, the staged files are the table's; here they must not get lost."""
    expected = make(make_scene, "append", lake=True, batch_rows=10_000)
    for point in points:
        expected.scene.use_spark(LOCAL)
        process, _ = expected.scene.start_and_hold(point)
        process.kill_all()
        expected.scene.use_spark({"remote": remote})
        finish(expected)
        expected.change()
    finish(expected)
    expected.scene.assert_nothing_staged()


@pytest.mark.chaos
def test_killed_at_random_moments(make_scene: MakeScene) -> None:
    seed = chosen(21)
    scene = make_scene(2, lake=True, seed=seed)
    kill_at_random(scene, random.Random(seed), 3, RUN_SECONDS)
    settle_and_finish(scene)


@pytest.mark.chaos
def test_killed_with_its_jvm_at_every_point_about_its_commit(
    make_scene: MakeScene, spark_server: SparkServer
) -> None:
    killed_with_its_jvm(make_scene, spark_server.url, *ABOUT_ITS_COMMIT)


@pytest.mark.chaos
def test_a_dead_worker_of_a_spark_of_its_own_fails_the_run_and_nothing_else(
    make_scene: MakeScene, spark_server: SparkServer
) -> None:
    scene = make_scene(2, lake=True, spark=LOCAL)
    for point in IN_WORKERS:
        kill_at(scene, point)
    scene.use_spark({"remote": spark_server.url})
    scene.run()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", LAKE_MODES)
def test_killed_at_every_point_in_first_and_later_runs(make_scene: MakeScene, mode: str) -> None:
    expected = make(make_scene, mode, lake=True, batch_rows=15)
    for point in IN_LAKE:
        kill_at(expected.scene, point)
        finish(expected)
        expected.change()
    finish(expected)
    expected.scene.assert_nothing_staged()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", LAKE_MODES)
def test_killed_at_every_point_of_its_first_load(make_scene: MakeScene, mode: str) -> None:
    for point in IN_LAKE:
        expected = make(make_scene, mode, lake=True, batch_rows=15)
        kill_at(expected.scene, point)
        finish(expected)
        expected.scene.assert_nothing_staged()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", LAKE_MODES)
def test_killed_at_twenty_random_moments(make_scene: MakeScene, mode: str) -> None:
    seed = chosen(22)
    expected = make(make_scene, mode, lake=True, batch_rows=15, seed=seed)
    rng = random.Random(seed)
    for _ in range(5):
        kills = 0
        while kills < 4:
            killed = kill_after(expected.scene.start(), rng.uniform(0.02, RUN_SECONDS))
            kills += killed
            if not killed:
                expected.loaded()
                expected.change()
        finish(expected)
        expected.change()
    finish(expected)
    expected.scene.assert_nothing_staged()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_killed_with_its_jvm_at_random_moments(make_scene: MakeScene, mode: str) -> None:
    seed = chosen(23)
    expected = make(make_scene, mode, lake=True, seed=seed, spark=LOCAL, batch_rows=60)
    rng = random.Random(seed)
    for number in range(10):
        everything = number % 2 == 0
        if not kill_after(expected.scene.start(), rng.uniform(3.0, 18.0), everything=everything):
            expected.loaded()
            expected.change()
    finish(expected)
    expected.scene.assert_nothing_staged()
