"""A run or a worker stopped past its lease: another finishes its job, and it can do nothing more.

A stopped process keeps its sessions and with them its advisory lock, so that only the lease says
that it is gone.
"""

from __future__ import annotations

import signal

import pytest

from acceptance.conftest import LOCAL, MakeQueue, MakeScene
from acceptance.harness import BUSY, Scene
from acceptance.oracle import assert_ledger, rows, scalar, staging_tables, wait_until_left
from acceptance.processes import Process, until
from acceptance.queueing import SHORT_LEASE, Queue, is_stopped

# Five lost beats: a busy machine may delay one or two.
WORKER = {"lease": "5s", "heartbeat": "1s"}
LEASES = "SELECT count(*) FROM tidegate_control.job_queue WHERE lease_until > now()"
STALE = "writeback_stale_attempt"
chaos = pytest.mark.chaos


def run_once_the_lease_is_over(scene: Scene, holder: Process) -> None:
    """While the lease lasts, others are told who holds the table; then one takes it."""

    def taken() -> bool:
        ended = scene.command("run", "orders")
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
    assert STALE in ended.err, ended
    assert "another attempt took over" in ended.out, ended
    assert scene.assert_ledger() == before
    scene.assert_exact()


def stopped_past_its_lease(scene: Scene, point: str) -> None:
    zombie, flag = scene.start_and_hold(point)
    busy = scene.command("run", "orders")
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
    scene.assert_swept()


@pytest.mark.parametrize("databases", [2, *(pytest.param(one, marks=chaos) for one in (1, 3))])
@pytest.mark.parametrize(
    "point",
    [
        "publish.applied",
        *(
            pytest.param(point, marks=chaos)
            for point in (
                *("fence.raised", "batch.planned", "stage.done", "check.done"),
                *("publish.fenced", "publish.moved", "publish.committed"),
            )
        ),
    ],
)
def test_a_run_wakes_up_after_another_has_finished_its_job(
    make_scene: MakeScene, point: str, databases: int
) -> None:
    stopped_past_its_lease(make_scene(databases, worker=WORKER), point)


@chaos
@pytest.mark.parametrize("point", ["stage.write", "stage.written"])
def test_a_run_wakes_up_with_all_its_spark(make_scene: MakeScene, point: str) -> None:
    """Driver, JVM and Python workers sleep in the middle of a COPY and wake up later."""
    scene = make_scene(2, worker=WORKER, spark=LOCAL, partitions=1)
    stopped_past_its_lease(scene, point)


def test_an_attempt_whose_fence_was_taken_publishes_nothing(make_scene: MakeScene) -> None:
    """Its own control database still believes in it: the destination has the last word."""
    scene = make_scene(2)
    process, flag = scene.start_and_hold("check.done")
    rows(scene.destination, "UPDATE tidegate.fences SET token = token + 7, attempt_id = 'another'")
    flag.unlink()
    ended = process.wait()
    assert ended.code == 0, ended
    assert STALE in ended.err, ended
    assert assert_ledger(scene.destination) == 0
    scene.run()
    scene.assert_swept()


def finish_elsewhere(queue: Queue) -> None:
    """Another worker sweeps, and finishes the job that it finds."""
    other = queue.start("--concurrency", "1")
    job = queue.wait_for(queue.submitted[-1])
    # On a busy machine this one may lose its short lease, too.
    assert job.attempt_count >= 2, job
    assert job.crash_count >= 1, job
    assert job.error is None, job
    other.kill()


def assert_worker_is_harmless(queue: Queue, zombie: Process) -> None:
    """Let go after its job was finished by another, it finds that out, and ends well."""
    scene = queue.scene
    queue.assert_all_done()
    before = assert_ledger(scene.destination)
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    assert STALE in ended.err, ended
    assert "0 done, 0 failed, 0 to be retried, 1 taken over by others" in ended.out, ended
    assert assert_ledger(scene.destination) == before
    queue.assert_all_done()
    wait_until_left(scene.source, scene.destination, scene.control)
    queue.sweep()
    assert staging_tables(scene.destination) == []


# In stage, in check, in publish and just before the end.
@pytest.mark.parametrize(
    ("databases", "point"),
    [
        (3, "publish.applied"),
        (2, "job.finishing"),
        *(
            pytest.param(databases, point, marks=chaos)
            for databases in (1, 2, 3)
            for point in ("stage.done", "check.done", "publish.marked")
        ),
    ],
)
def test_a_worker_wakes_up_after_another_has_finished_its_job(
    make_queue: MakeQueue, databases: int, point: str
) -> None:
    queue = make_queue(databases, worker=SHORT_LEASE)
    queue.submit_locked_sync()
    zombie = queue.start("--once", failpoint=f"{point}=stop")
    zombie.wait_for(lambda: is_stopped(zombie.pid), point)
    finish_elsewhere(queue)
    assert_worker_is_harmless(queue, zombie)
    queue.scene.change()
    queue.scene.run()
    queue.scene.assert_swept()


@chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("point", ["stage.write", "stage.written"])
def test_a_worker_wakes_up_with_all_its_spark(
    make_queue: MakeQueue, databases: int, point: str
) -> None:
    """Driver, JVM and Python workers sleep in the middle of a COPY."""
    queue = make_queue(databases, worker=SHORT_LEASE, spark=LOCAL, partitions=1)
    queue.submit_locked_sync()
    zombie, flag = queue.start_and_hold(point, "--once")
    zombie.stop()
    finish_elsewhere(queue)
    flag.unlink()
    assert_worker_is_harmless(queue, zombie)


def test_a_worker_that_wakes_up_to_a_signal_gives_nothing_of_another_back(
    make_queue: MakeQueue,
) -> None:
    """The job that its thread still sits in has become its successor's."""
    queue = make_queue(2, worker=SHORT_LEASE)
    job_id = queue.submit_locked_sync()
    zombie, _ = queue.start_and_hold("fence.raised")
    zombie.stop()
    successor, flag = queue.start_and_hold("stage.done")
    before = queue.job(job_id)
    zombie.send(signal.SIGTERM)
    zombie.resume()
    ended = zombie.wait()
    assert ended.code in (0, 1), ended
    assert "told_to_stop" in ended.err, ended
    assert queue.holder(job_id) == successor.pid
    assert queue.job(job_id) == before
    flag.unlink()
    queue.wait_for(job_id)
    queue.assert_all_done()
