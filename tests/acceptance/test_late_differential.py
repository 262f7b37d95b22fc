"""A random workload, runs killed at random under it, and at the end target and source are equal."""

from __future__ import annotations

import random
import signal

import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.late_workload import EXTRA, Workload
from acceptance.test_random_kills import kill_after
from acceptance.test_repair_killed import repair
from chaos_seeds import chosen, seeds

CDC: dict[str, object] = {"changes": "cdc", "cursor": None}
SNAPSHOT: dict[str, object] = {"changes": "snapshot", "cursor": None}
# What a seed is about, by its last digit.
CDC_INTO_LAKE = (4, 9)
BY_SNAPSHOT = (2, 5)
BY_SNAPSHOT_AND_REPAIRED = (7,)
SEEDS = seeds((0, 4, 7))
MORE_SEEDS = seeds(seed for seed in range(210) if seed not in (0, 4, 7))
KILLS = 3
STEPS = 60
COMMITS = 10
POINTS = (
    "job.claimed",
    "batch.planned",
    "stage.done",
    "publish.applied",
    "publish.moved",
    "publish.committed",
    "job.finishing",
)
POINTS_OF_CDC = (*POINTS, "slot.made", "changes.landed", "slot.noted", "slot.advanced")
# Of these small tables, all of it warm.
RUN_SECONDS = 1.5
LAKE_RUN_SECONDS = 4.0
TRIES = 12


def kill_once(scene: Scene, rng: random.Random, points: tuple[str, ...], *, soon: bool) -> bool:
    """One run, killed at a moment or at a point; False when it got through.

    With `soon` at a point, the first time that it is reached.
    """
    if not soon and rng.random() < 0.5:
        seconds = LAKE_RUN_SECONDS if scene.lake else RUN_SECONDS
        return kill_after(scene.start(), rng.uniform(0.02, seconds))
    point = f"{rng.choice(points)}@{1 if soon else rng.choice([1, 1, 2])}"
    ended = scene.start(failpoint=f"{point}=kill").wait()
    assert ended.code in (0, -signal.SIGKILL), ended
    return ended.code != 0


def assert_no_difference(make_scene: MakeScene, seed: int) -> None:
    try:
        work_and_compare(make_scene, chosen(seed))
    except BaseException as error:
        error.add_note(f"this was seed {seed} of {__name__}")
        raise


def work_and_compare(make_scene: MakeScene, seed: int) -> None:
    rng = random.Random(f"kills {seed}")
    kind = seed % 10
    repaired = kind in BY_SNAPSHOT_AND_REPAIRED
    cdc = not repaired and kind not in BY_SNAPSHOT
    scene = make_scene(
        rng.choice([1, 2, 2, 3]),
        seed=seed,
        sync=CDC if cdc else SNAPSHOT,
        batch_rows=rng.choice([30, 100, 400]),
        lake=kind in CDC_INTO_LAKE,
    )
    with Workload(scene.source, seed, removes=cdc or repaired) as workload:
        workload.write(STEPS)
        if rng.random() < 0.5:
            scene.run()
        kills = tries = 0
        while kills < KILLS and tries < TRIES:
            tries += 1
            workload.write(STEPS)
            soon = not kills and tries > TRIES // 2
            kills += kill_once(scene, rng, POINTS_OF_CDC if cdc else POINTS, soon=soon)
            if kills >= KILLS // 2:
                workload.add_column()
        while workload.commits <= COMMITS:
            workload.write(STEPS)
    assert kills, "no run was killed"
    scene.columns = (*scene.columns, EXTRA)
    scene.wait_until_left()
    scene.run()
    if repaired:
        ended = repair(scene)
        assert ended.code == 0, ended
    loads = scene.assert_exact()
    assert "found nothing new" in scene.run().out
    assert scene.assert_exact() == loads


@pytest.mark.parametrize("seed", SEEDS)
def test_target_equals_source_after_a_random_workload_under_kills(
    make_scene: MakeScene, seed: int
) -> None:
    assert_no_difference(make_scene, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_target_equals_source_after_more_random_workloads_under_kills(
    make_scene: MakeScene, seed: int
) -> None:
    assert_no_difference(make_scene, seed)
