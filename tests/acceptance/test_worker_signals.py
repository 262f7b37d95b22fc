"""A worker that is told to go is gone within two seconds, and what it worked on is not harmed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from uuid import UUID

import pytest

from acceptance import oracle
from acceptance.conftest import MakeQueue
from acceptance.processes import Ended, Process, until
from acceptance.queueing import QUICK, Queue
from acceptance.slow_stage import SlowStage

# Two by the rules; this machine may be busy.
SOON_SECONDS = 3.5
BOTH = [signal.SIGTERM, signal.SIGINT]


def tell(process: Process, number: signal.Signals = signal.SIGTERM) -> Ended:
    """Send a signal; the process must be gone soon."""
    told_at = time.monotonic()
    process.send(number)
    ended = process.wait()
    took = time.monotonic() - told_at
    assert took < SOON_SECONDS, f"gone only after {took:.1f} s: {ended}"
    assert "Traceback" not in ended.err, ended
    return ended


def assert_given_back(queue: Queue, job_id: UUID) -> None:
    job = queue.job(job_id)
    assert (job.status, job.error) == ("pending", None), job
    assert (job.error_count, job.crash_count) == (0, 0), job
    assert queue.worker_pids() == set()


def finish(queue: Queue) -> None:
    queue.burst()
    queue.assert_all_done()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.chaos)]
)
def test_told_while_its_job_sits_in_spark(
    make_queue: MakeQueue, tmp_path: Path, number: signal.Signals
) -> None:
    slow = SlowStage(tmp_path)
    queue = make_queue(2, pipelines=slow.pipelines)
    slow.close_gate()
    job_id = queue.submit_locked_sync()
    process = queue.start()
    process.wait_for(lambda: slow.is_busy, "Spark's worker to be busy")
    ended = tell(process, number)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    slow.let_go()
    finish(queue)


def told_inside_publish(queue: Queue, point: str, number: signal.Signals, is_in: bool) -> None:
    """Never failed with data present: it is pending, and whoever takes it up finds the marker."""
    process, flag = queue.start_and_hold(point)
    ended = tell(process, number)
    assert ended.code == 1, ended
    assert_given_back(queue, queue.submitted[-1])
    oracle.wait_until_left(queue.scene.destination)
    assert oracle.assert_ledger(queue.scene.destination) == int(is_in)
    flag.unlink()


def test_told_inside_publish(make_queue: MakeQueue) -> None:
    queue = make_queue(2, batch_rows=10_000)
    queue.submit_locked_sync()
    told_inside_publish(queue, "publish.applied", signal.SIGTERM, is_in=False)
    told_inside_publish(queue, "publish.committed", signal.SIGINT, is_in=True)
    finish(queue)
    assert oracle.assert_ledger(queue.scene.destination) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("number", BOTH)
def test_told_anywhere_in_publish(
    make_queue: MakeQueue, number: signal.Signals, databases: int
) -> None:
    queue = make_queue(databases, batch_rows=10_000)
    queue.submit_locked_sync()
    for point in ("publish.fenced", "publish.marked", "publish.applied", "publish.moved"):
        told_inside_publish(queue, point, number, is_in=False)
    told_inside_publish(queue, "publish.committed", number, is_in=True)
    finish(queue)


def test_told_with_nothing_to_give_back_it_leaves_well(make_queue: MakeQueue) -> None:
    """Its job is done, or it has none, so nothing is lost."""
    queue = make_queue(2, batch_rows=10_000)
    job_id = queue.submit_locked_sync()
    process, _ = queue.start_and_hold("job.finished")
    ended = tell(process)
    assert ended.code == 0, ended
    assert "attempt_lost" not in ended.err, ended
    assert queue.job(job_id).status == "done"
    for number in BOTH:
        ended = tell(queue.start_ready(), number)
        assert ended.code == 0, ended
        assert queue.worker_pids() == set()


def tell_again(process: Process) -> bool:
    """An echo within a moment counts as the same signal; who means it goes on."""
    process.send(signal.SIGTERM)
    return not process.alive


def test_told_once_or_twice_while_it_cannot_give_its_job_back(make_queue: MakeQueue) -> None:
    """It goes all the same; the job is taken back by the next, since its session is gone."""
    queue = make_queue(2)
    job_id = queue.submit_locked_sync()
    process, _ = queue.start_and_hold("fence.raised")
    with queue.locked(job_id):
        ended = tell(process)
    assert ended.code == 1, ended
    assert "leaves_work_behind" in ended.err, ended

    process, _ = queue.start_and_hold("fence.raised")
    with queue.locked(job_id):
        process.send(signal.SIGTERM)
        process.wait_for(lambda: "told_to_stop" in process.err, "the first signal")
        until(lambda: tell_again(process), "the second signal to be heard", SOON_SECONDS)
        ended = process.wait()
    assert ended.code == 1, ended
    assert "told_twice" in ended.err, ended
    assert "leaves_work_behind" not in ended.err, ended
    # What was asked of the database before may still come about, and does no harm.
    assert queue.job(job_id).error is None
    finish(queue)


def test_a_vacuum_that_is_told_to_stop_has_failed(make_queue: MakeQueue) -> None:
    queue = make_queue(2, sync={"mode": "append", "key": ["region", "id"]})
    scene = queue.scene
    flag = scene.flag("vacuuming")
    process = queue.start(failpoint=f"vacuum.chunk=wait:{flag}")
    queue.wait_for(queue.submit_locked_sync())
    scene.at_source("UPDATE orders SET total = total + 1, updated_at = now()")
    queue.wait_for(queue.submit_locked_sync())
    job_id = queue.submit_vacuum()
    process.wait_for(flag.exists, "a chunk to be gone")
    ended = tell(process)
    assert ended.code == 1, ended
    job = queue.job(job_id)
    assert (job.status, job.error) == ("failed", "Worker received SIGTERM"), job
    queue.assert_ended_once()
    flag.unlink()
    scene.assert_exact()


def test_many_quick_jobs_are_given_back_when_told_to_stop(make_queue: MakeQueue) -> None:
    """What was claimed together, and is in nobody's thread, counts as no crash either."""
    queue = make_queue(1)
    queue.submit_nothing(600, max_attempts=100)
    process = queue.start("--concurrency", "50")
    process.wait_for(lambda: 0 < queue.unfinished() < 550, "some jobs to be done")
    ended = tell(process)
    assert ended.code in (0, 1), ended
    query = "SELECT DISTINCT status, crash_count FROM tidegate_control.jobs"
    assert set(oracle.rows(queue.scene.control, query)) <= {("done", 0), ("pending", 0)}
    queue.burst("--concurrency", "50")
    queue.assert_ended_once()


def test_exit_codes_of_once_and_burst(make_queue: MakeQueue) -> None:
    queue = make_queue(1, worker={**QUICK, "max_attempts": 1})
    ended = queue.start("--once").wait()
    assert ended.code == 0, ended
    assert "0 done" in ended.out, ended
    first, second = queue.submit_nothing(2, max_attempts=100)
    assert queue.start("--once").wait().code == 0
    assert [queue.job(first).status, queue.job(second).status] == ["done", "pending"]
    queue.scene.at_source("ALTER TABLE orders RENAME TO gone")
    failing = queue.submit_locked_sync("orders")
    ended = queue.start("--burst", "--concurrency", "1").wait()
    assert ended.code == 1, ended
    assert queue.job(second).status == "done"
    assert queue.job(failing).status == "failed"
    assert "orders" in str(queue.job(failing).error)
    queue.burst()
