"""A worker stopped past its lease: another finishes its job, and it can do nothing any more.

A stopped process keeps its sessions and with them its advisory lock, so that only the lease says
that it is gone.
"""

from __future__ import annotations

import signal

import pytest

from acceptance.conftest import LOCAL, MakeQueue
from acceptance.oracle import assert_ledger, staging_tables, wait_until_left
from acceptance.processes import Process
from acceptance.queueing import SHORT_LEASE, Queue, is_stopped

# In stage, in check, in publish and just before the end.
POINTS = ("stage.done", "check.done", "publish.marked", "publish.applied", "job.finishing")


def assert_harmless(queue: Queue, zombie: Process) -> None:
    """Let go after its job was finished by another, it finds that out, and ends well."""
    scene = queue.scene
    queue.assert_all_done()
    before = assert_ledger(scene.destination)
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    assert "writeback_stale_attempt" in ended.err, ended
    assert "0 done, 0 failed, 0 to be retried, 1 taken over by others" in ended.out, ended
    assert assert_ledger(scene.destination) == before
    queue.assert_all_done()


def finish_elsewhere(queue: Queue) -> None:
    """Another worker sweeps, and finishes the job that it finds."""
    other = queue.start("--concurrency", "1")
    job = queue.wait_for(queue.submitted[-1])
    # On a busy machine this one may lose its short lease, too.
    assert job.attempt_count >= 2, job
    assert job.crash_count >= 1, job
    assert job.error is None, job
    other.kill()


def stopped_past_its_lease(queue: Queue, point: str) -> None:
    queue.submit_locked_sync()
    zombie = queue.start("--once", failpoint=f"{point}=stop")
    zombie.wait_for(lambda: is_stopped(zombie.pid), point)
    finish_elsewhere(queue)
    assert_harmless(queue, zombie)
    wait_until_left(queue.scene.source, queue.scene.destination, queue.scene.control)
    queue.sweep()
    assert staging_tables(queue.scene.destination) == []


@pytest.mark.parametrize(
    ("databases", "point"),
    [(1, "stage.done"), (2, "check.done"), (3, "publish.applied"), (2, "job.finishing")],
)
def test_a_worker_wakes_up_after_its_job_was_finished_by_another(
    make_queue: MakeQueue, databases: int, point: str
) -> None:
    stopped_past_its_lease(make_queue(databases, worker=SHORT_LEASE), point)


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


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_wakes_up_anywhere(make_queue: MakeQueue, databases: int, point: str) -> None:
    queue = make_queue(databases, worker=SHORT_LEASE)
    stopped_past_its_lease(queue, point)
    queue.scene.change()
    queue.submit_locked_sync()
    queue.burst()
    queue.assert_all_done()
    queue.scene.assert_nothing_staged()


@pytest.mark.chaos
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
    assert_harmless(queue, zombie)
    wait_until_left(queue.scene.source, queue.scene.destination, queue.scene.control)
    queue.sweep()
    assert staging_tables(queue.scene.destination) == []
