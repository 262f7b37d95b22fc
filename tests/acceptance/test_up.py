"""`tidegate up`: workers that run together, are kept alive, and stop together."""

from __future__ import annotations

import os
import signal
import time

import pytest

from acceptance.conftest import MakeQueue
from acceptance.processes import Process, until
from acceptance.queueing import Queue, is_gone

SOON_SECONDS = 6.0


def start_up(
    queue: Queue, failpoint: str | None = None, workers: int = 2
) -> tuple[Process, set[int]]:
    up = queue.start_up("--workers", str(workers), "--concurrency", "1", failpoint=failpoint)
    up.wait_for(lambda: len(queue.worker_pids()) == workers, "its workers")
    return up, queue.worker_pids()


def wait_until_gone(pids: set[int]) -> None:
    until(lambda: all(map(is_gone, pids)), "its workers to be gone", SOON_SECONDS)


def test_a_killed_worker_is_started_again_and_all_stop_together(make_queue: MakeQueue) -> None:
    queue = make_queue(2)
    flag = queue.scene.flag("raised")
    queue.submit_locked_sync()
    # Each process waits at its own first passage, so the next one does too.
    up, pids = start_up(queue, failpoint=f"fence.raised=wait:{flag}")
    up.wait_for(flag.exists, "one of them to work")
    holder = queue.holder(queue.submitted[0])
    assert holder in pids
    assert all(os.getsid(pid) != up.pid for pid in pids)
    os.kill(holder, signal.SIGKILL)
    flag.unlink()
    other = next(iter(pids - {holder}))
    # The other one, or the one that is started in its place, takes the job over.
    up.wait_for(lambda: flag.exists() and queue.holder(queue.submitted[0]) != holder, "a successor")
    flag.unlink()
    assert queue.wait_for(queue.submitted[0]).crash_count == 1
    up.wait_for(lambda: len(queue.worker_pids() - {holder}) == 2, "a new worker")
    assert other in queue.worker_pids()
    assert "ended with -9; starting it again" in up.out
    queue.assert_all_done()
    pids = queue.worker_pids() - {holder}
    told_at = time.monotonic()
    up.send(signal.SIGTERM)
    ended = up.wait()
    assert time.monotonic() - told_at < SOON_SECONDS
    assert ended.code == 0, ended
    assert all(map(is_gone, pids))
    assert queue.worker_pids() <= {holder}


@pytest.mark.chaos
def test_up_stops_workers_that_are_at_work(make_queue: MakeQueue) -> None:
    queue = make_queue(1)
    flag = queue.scene.flag("raised")
    job_id = queue.submit_locked_sync()
    up, pids = start_up(queue, failpoint=f"fence.raised=wait:{flag}")
    up.wait_for(flag.exists, "one of them to work")
    up.send(signal.SIGINT)
    ended = up.wait(SOON_SECONDS)
    assert ended.code == 1, ended
    assert all(map(is_gone, pids))
    job = queue.job(job_id)
    assert (job.status, job.error, job.crash_count) == ("pending", None, 0), job


def test_a_killed_up_leaves_no_worker_behind(make_queue: MakeQueue) -> None:
    queue = make_queue(1)
    flag = queue.scene.flag("raised")
    job_id = queue.submit_locked_sync()
    up, pids = start_up(queue, f"fence.raised=wait:{flag}", workers=1)
    up.wait_for(flag.exists, "one of them to work")
    assert up.kill().code == -signal.SIGKILL
    wait_until_gone(pids)
    job = queue.job(job_id)
    assert (job.status, job.error, job.crash_count) == ("pending", None, 0), job


@pytest.mark.chaos
def test_a_worker_that_cannot_live_ends_them_all(make_queue: MakeQueue) -> None:
    queue = make_queue(1)
    up, pids = start_up(queue)
    settings = queue.scene.folder / "tidegate.toml"
    settings.write_text(settings.read_text() + "[no_such_section]\n")
    os.kill(min(pids), signal.SIGKILL)
    ended = up.wait(90)
    assert ended.code == 1, ended
    assert "ended 5 times in a row; giving up" in ended.out, ended
    assert "no_such_section" in ended.out, ended
    assert all(map(is_gone, pids))
