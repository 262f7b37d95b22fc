"""A worker that is told to go is gone within two seconds, and what it worked on is not harmed."""

from __future__ import annotations

import signal
import time
from uuid import UUID

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeQueue
from acceptance.processes import Ended, Process
from acceptance.workers import Queue

# Two by the rules; this machine may be busy.
SOON_SECONDS = 3.5
# Its workers sleep as long as one file is there, and say in another that they do.
SLEEPING = """\
import tidegate as tg


def sleep(batches):
    import pathlib, time
    go_on, asleep = pathlib.Path({go_on!r}), pathlib.Path({asleep!r})
    while not go_on.exists():
        asleep.write_text(str(time.time()))
        time.sleep(0.1)
    yield from batches


@tg.sync(source="source:public.orders", target="warehouse:raw.orders",
         key=["region", "id"], cursor="updated_at", partitions=1)
def orders(df):
    kept = df.select("region", "id", "status", "total", "seq", "updated_at")
    return kept.mapInArrow(sleep, kept.schema)
"""
COLUMNS = ("region", "id", "status", "total", "seq", "updated_at")
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


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


@BOTH
def test_told_while_its_job_sits_in_spark(make_queue: MakeQueue, number: signal.Signals) -> None:
    queue = make_queue(2, columns=COLUMNS)
    scene = queue.scene
    go_on, asleep = scene.flag("go-on"), scene.flag("asleep")
    scene.pipelines = SLEEPING.format(go_on=str(go_on), asleep=str(asleep))
    scene.write_project()
    job_id = queue.submit_sync()
    process = queue.start()
    process.wait_for(asleep.exists, "Spark's worker to sleep")
    ended = tell(process, number)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    go_on.touch()
    finish(queue)


@pytest.mark.parametrize(
    ("point", "is_in"),
    [("publish.applied", False), ("publish.moved", False), ("publish.committed", True)],
)
def test_told_inside_publish(make_queue: MakeQueue, point: str, is_in: bool) -> None:
    """Never failed with data present: it is pending, and whoever takes it up finds the marker."""
    queue = make_queue(2, batch_rows=10_000)
    job_id = queue.submit_sync()
    process, flag = queue.start_and_hold(point)
    ended = tell(process)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    oracle.wait_until_left(queue.scene.destination)
    loads = oracle.assert_ledger(queue.scene.destination)
    assert loads == int(is_in)
    flag.unlink()
    finish(queue)
    assert oracle.assert_ledger(queue.scene.destination) == 1


def test_told_while_it_cannot_give_its_job_back(make_queue: MakeQueue) -> None:
    """It goes all the same; the job is taken back by the next, since its session is gone."""
    queue = make_queue(2)
    job_id = queue.submit_sync()
    process, flag = queue.start_and_hold("stage.done")
    with queue.locked(job_id):
        ended = tell(process)
    assert ended.code == 1, ended
    assert "worker_leaves_work_behind" in ended.err, ended
    flag.unlink()
    finish(queue)


def test_told_twice(make_queue: MakeQueue) -> None:
    queue = make_queue(2)
    job_id = queue.submit_sync()
    process, flag = queue.start_and_hold("stage.done")
    with queue.locked(job_id):
        process.send(signal.SIGTERM)
        process.wait_for(lambda: "worker_told_to_stop" in process.err, "the first signal")
        ended = tell(process)
    assert ended.code == 1, ended
    assert "worker_told_twice" in ended.err, ended
    assert "worker_leaves_work_behind" not in ended.err, ended
    flag.unlink()
    finish(queue)


@BOTH
def test_an_idle_worker_leaves_well(make_queue: MakeQueue, number: signal.Signals) -> None:
    queue = make_queue(2)
    ended = tell(queue.start_ready(), number)
    assert ended.code == 0, ended
    assert queue.worker_pids() == set()


def test_a_vacuum_that_is_told_to_stop_has_failed(make_queue: MakeQueue) -> None:
    queue = make_queue(2, sync={"mode": "append", "key": ["region", "id"]})
    scene = queue.scene
    queue.submit_sync()
    queue.burst()
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("UPDATE orders SET total = total + 1, updated_at = now()")
    queue.submit_sync()
    queue.burst()
    job_id = queue.submit_vacuum()
    process, flag = queue.start_and_hold("vacuum.chunk")
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
    queue.submit_nothing(2000)
    process = queue.start("--concurrency", "50")
    process.wait_for(lambda: 0 < queue.unfinished() < 1900, "some jobs to be done")
    ended = tell(process)
    assert ended.code in (0, 1), ended
    with psycopg.connect(queue.scene.control) as connection:
        found = connection.execute(
            "SELECT status, crash_count, count(*) FROM tidegate_control.jobs GROUP BY 1, 2"
        ).fetchall()
    assert {(status, crashes) for status, crashes, _ in found} <= {("done", 0), ("pending", 0)}
    queue.burst("--concurrency", "50")
    queue.assert_ended_once()


def test_exit_codes_of_once_and_burst(make_queue: MakeQueue) -> None:
    queue = make_queue(1, tables=("orders", "returns"))
    for option in ("--once", "--burst"):
        ended = queue.start(option).wait()
        assert ended.code == 0, ended
        assert "0 done" in ended.out, ended
    first, second = queue.submit_nothing(2)
    assert queue.start("--once").wait().code == 0
    assert [queue.job(first).status, queue.job(second).status] == ["done", "pending"]
    queue.burst()
    with psycopg.connect(queue.scene.source, autocommit=True) as connection:
        connection.execute("DROP TABLE orders")
    failing, fine = queue.submit_syncs("orders")[0], queue.submit_sync("returns")
    ended = queue.start("--burst", "--concurrency", "1").wait()
    assert ended.code == 1, ended
    assert queue.job(failing).status == "failed"
    assert "orders" in str(queue.job(failing).error)
    queue.wait_for(fine)
