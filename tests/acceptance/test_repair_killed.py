"""`verify --repair` and `backfill` of a sync, killed at every point and repeated, end right."""

from __future__ import annotations

import json
import signal

import psycopg
import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.processes import Ended, WarmProcess

# In the order in which a repair passes them; the second load of one, too.
POINTS = (
    *("job.submitted", "job.claimed", "fence.raised", "batch.planned", "stage.write"),
    *("stage.written", "stage.done", "check.done", "publish.fenced", "publish.marked"),
    *("publish.applied", "publish.moved", "publish.committed", "batch.planned@2"),
    *("publish.applied@2", "publish.committed@2", "job.finishing", "job.finished"),
)
INTO_LAKE = ("stage.done", "branch.staged", "intent.noted", "branch.forwarded", "job.finishing")


def tidegate(scene: Scene, *command: str, failpoint: str | None = None) -> Ended:
    armed = {"TIDEGATE_FAILPOINT": f"{failpoint}=kill"} if failpoint else {}
    log = scene.folder / f"command-{scene.number()}"
    process = WarmProcess(["tidegate", *command, "--project", str(scene.folder)], log, armed)
    scene.ends(process)
    return process.wait()


def repair(scene: Scene, failpoint: str | None = None) -> Ended:
    return tidegate(scene, "verify", "orders", "--repair", failpoint=failpoint)


def damage(scene: Scene) -> None:
    """What no cursor shows: rows deleted, changed and put in below the watermark."""
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("DELETE FROM orders WHERE id % 7 = 0")
        connection.execute("UPDATE orders SET total = total + 1")
        connection.execute(
            "INSERT INTO orders (region, id, total, updated_at)"
            " SELECT 'late', coalesce(max(id), 0) + 1, 0, min(updated_at) FROM orders"
        )


def assert_repaired(scene: Scene) -> None:
    damage(scene)
    ended = repair(scene)
    assert ended.code == 0, ended
    scene.assert_exact()
    assert tidegate(scene, "verify", "orders").code == 0


def test_a_repair_that_is_killed_anywhere_is_ended_by_the_next(make_scene: MakeScene) -> None:
    scene = make_scene(2)
    scene.change(6)
    scene.run()
    for point in POINTS:
        damage(scene)
        ended = repair(scene, point)
        assert ended.code == -signal.SIGKILL, (point, ended)
    assert_repaired(scene)
    scene.assert_swept()


def test_a_run_goes_on_after_a_repair_that_was_killed(make_scene: MakeScene) -> None:
    scene = make_scene(3)
    scene.run()
    damage(scene)
    assert repair(scene, "publish.moved").code == -signal.SIGKILL
    scene.change()
    scene.run()
    assert_repaired(scene)


@pytest.mark.parametrize("points", [INTO_LAKE])
def test_a_repair_of_a_lake_that_is_killed_is_ended_by_the_next(
    make_scene: MakeScene, points: tuple[str, ...]
) -> None:
    scene = make_scene(2, lake=True, batch_rows=400)
    scene.run()
    for point in points:
        damage(scene)
        ended = repair(scene, point)
        assert ended.code == -signal.SIGKILL, (point, ended)
    assert_repaired(scene)


def test_a_backfill_that_is_killed_goes_on_with_what_is_missing(make_scene: MakeScene) -> None:
    scene = make_scene(2)
    scene.run()
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute(
            "UPDATE orders SET updated_at = timestamptz '2026-01-01' + (id % 4) * interval '1 day'"
        )
    wanted = ("backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-05", "--json")
    killed = ("publish.moved", "publish.committed", "stage.done", "publish.committed@2")
    for point in killed:
        ended = tidegate(scene, *wanted, failpoint=point)
        assert ended.code == -signal.SIGKILL, (point, ended)
    ended = tidegate(scene, *wanted)
    assert ended.code == 0, ended
    found = json.loads(ended.out)
    assert (found["chunks"], found["already"], found["loaded"]) == (4, 3, 1)
    assert scene.assert_ledger() == 1 + 4
