"""SIGKILL at random moments, and the same run started over and over, killed in between."""

from __future__ import annotations

import random
import signal
import time

import pytest

from acceptance.conftest import LOCAL, MakeScene
from acceptance.harness import Scene
from acceptance.oracle import wait_until_left
from acceptance.processes import Process
from chaos_seeds import chosen

# A run of these small tables, all of it warm, takes about this long.
RUN_SECONDS = 1.0


def kill_after(process: Process, seconds: float, *, everything: bool = False) -> bool:
    """SIGKILL a run at a moment of its life; False when it was over before."""
    deadline = time.monotonic() + seconds
    while process.alive and time.monotonic() < deadline:
        time.sleep(0.005)
    if everything and process.alive:
        process.kill_all()
        return True
    # It may end by itself up to the very moment of the signal.
    ended = process.kill() if process.alive else process.wait()
    if ended.code == -signal.SIGKILL:
        return True
    assert ended.code == 0, ended
    return False


def kill_at_random(
    scene: Scene, rng: random.Random, times: int, run_seconds: float = RUN_SECONDS
) -> None:
    """Change and run until so many runs were killed; those that got through are fine too."""
    while times:
        scene.change(2)
        times -= kill_after(scene.start(), rng.uniform(0.02, run_seconds))


def settle_and_finish(scene: Scene) -> int:
    """Runs killed a moment ago hold the horizon back until their sessions have ended."""
    wait_until_left(scene.source)
    scene.run()
    scene.assert_swept()
    return scene.assert_exact()


def test_killed_at_random_moments_and_once_done_the_same_run_loads_nothing(
    make_scene: MakeScene,
) -> None:
    seed = chosen(10)
    scene = make_scene(2, seed=seed)
    kill_at_random(scene, random.Random(seed), 4)
    loads = settle_and_finish(scene)
    scene.run()
    assert scene.assert_exact() == loads


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
def test_killed_at_fifty_random_moments(make_scene: MakeScene, databases: int) -> None:
    seed = chosen(50 + databases)
    scene = make_scene(databases, seed=seed, batch_rows=15)
    rng = random.Random(seed)
    for _ in range(10):
        kill_at_random(scene, rng, 5)
        settle_and_finish(scene)


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
def test_killed_with_its_jvm_at_random_moments(make_scene: MakeScene, databases: int) -> None:
    seed = chosen(70 + databases)
    scene = make_scene(databases, seed=seed, spark=LOCAL, batch_rows=15)
    rng = random.Random(seed)
    for number in range(10):
        scene.change(2)
        kill_after(scene.start(), rng.uniform(0.5, 12.0), everything=number % 2 == 0)
    settle_and_finish(scene)
