"""An attempt stopped past its lease: its replacement finishes, and it can do nothing any more."""

from __future__ import annotations

import psycopg
import pytest

from acceptance.conftest import LOCAL, MakeScene
from acceptance.harness import BUSY, Scene
from acceptance.oracle import assert_ledger, scalar, wait_until_left
from acceptance.processes import Process, until

# Five lost beats: a busy machine may delay one or two.
WORKER = {"lease": "5s", "heartbeat": "1s"}
LEASES = "SELECT count(*) FROM tidegate_control.job_queue WHERE lease_until > now()"


def run_once_the_lease_is_over(scene: Scene, holder: Process) -> None:
    """While the lease lasts, others are told who holds the table; then one takes it."""

    def taken() -> bool:
        ended = scene.start().wait()
        if ended.code == BUSY:
            assert f"process {holder.pid} on" in ended.err, ended
            return False
        assert ended.code == 0, ended
        return True

    if taken():  # on a machine as slow as that
        return
    until(lambda: scalar(scene.control, LEASES) == 0, "the lease to run out", seconds=60)
    until(taken, "somebody to take it", seconds=60)


def assert_zombie_is_harmless(scene: Scene, zombie: Process) -> None:
    before = scene.assert_ledger()
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    assert "writeback_stale_attempt" in ended.err, ended
    assert "another attempt took over" in ended.out, ended
    assert scene.assert_ledger() == before
    scene.assert_exact()


def stopped_past_its_lease(scene: Scene, point: str) -> None:
    zombie, flag = scene.start_and_hold(point)
    busy = scene.start().wait()
    assert busy.code == BUSY, busy
    assert f"process {zombie.pid} on" in busy.err, busy
    zombie.stop()
    run_once_the_lease_is_over(scene, zombie)
    scene.assert_exact()
    flag.unlink()
    assert_zombie_is_harmless(scene, zombie)
    wait_until_left(scene.source)
    scene.change()
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.parametrize("point", ["stage.done", "publish.applied", "publish.committed"])
def test_a_zombie_on_two_databases(make_scene: MakeScene, point: str) -> None:
    stopped_past_its_lease(make_scene(2, worker=WORKER), point)


def test_an_attempt_whose_fence_was_taken_publishes_nothing(make_scene: MakeScene) -> None:
    """Its own control database still believes in it: the destination has the last word."""
    scene = make_scene(2)
    process, flag = scene.start_and_hold("check.done")
    with psycopg.connect(scene.destination, autocommit=True) as connection:
        connection.execute("UPDATE tidegate.fences SET token = token + 7, attempt_id = 'another'")
    flag.unlink()
    ended = process.wait()
    assert ended.code == 0, ended
    assert "writeback_stale_attempt" in ended.err, ended
    assert assert_ledger(scene.destination) == 0
    scene.run()
    scene.assert_exact()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize(
    "point", ["fence.raised", "batch.planned", "check.done", "publish.fenced", "publish.moved"]
)
def test_a_zombie_anywhere(make_scene: MakeScene, point: str, databases: int) -> None:
    stopped_past_its_lease(make_scene(databases, worker=WORKER), point)


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 3])
@pytest.mark.parametrize("point", ["stage.done", "publish.applied"])
def test_a_zombie_on_one_and_three_databases(
    make_scene: MakeScene, point: str, databases: int
) -> None:
    stopped_past_its_lease(make_scene(databases, worker=WORKER), point)


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["stage.write", "stage.written"])
def test_a_zombie_with_all_its_spark(make_scene: MakeScene, point: str) -> None:
    """Driver, JVM and Python workers sleep in the middle of a COPY and wake up later."""
    scene = make_scene(2, worker=WORKER, spark=LOCAL, partitions=1)
    stopped_past_its_lease(scene, point)
