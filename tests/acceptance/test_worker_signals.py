"""A worker that is told to go is gone within two seconds, and what it worked on is not harmed."""

from __future__ import annotations

import signal
import time
from uuid import UUID

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import CONNECT, MakeQueue
from acceptance.processes import Ended, Process, until
from acceptance.queueing import QUICK, Queue

# Two by the rules; this machine may be busy.
SOON_SECONDS = 3.5
# Its workers sleep as long as one file is there, and say in another that they do.
SLEEPING = """\
import tidegate as tg


def sleep(batches):
    import pathlib, time
    go_on, asleep = pathlib.Path({go_on!r}), pathlib.Path({asleep!r})
    while not go_on.exists():
        asleep.touch()
        time.sleep(0.1)
    yield from batches


@tg.sync(source="source:public.orders", target="warehouse:raw.orders",
         key=["region", "id"], cursor="updated_at", partitions=1)
def orders(df):
    kept = df.select("region", "id", "status", "total", "seq", "updated_at")
    return kept.mapInArrow(sleep, kept.schema)
"""
COLUMNS = ("region", "id", "status", "total", "seq", "updated_at")
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
def test_told_while_its_job_sits_in_spark(make_queue: MakeQueue, number: signal.Signals) -> None:
    queue = make_queue(2, columns=COLUMNS, spark=CONNECT)
    scene = queue.scene
    go_on, asleep = scene.flag("go-on"), scene.flag("asleep")
    scene.pipelines = SLEEPING.format(go_on=str(go_on), asleep=str(asleep))
    scene.write_project()
    job_id = queue.submit_locked_sync()
    process = queue.start()
    process.wait_for(asleep.exists, "Spark's worker to sleep")
    ended = tell(process, number)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    go_on.touch()
    finish(queue)


def told_inside_publish(queue: Queue, point: str, number: signal.Signals, is_in: bool) -> None:
    """Never failed with data present: it is pending, and whoever takes it up finds the marker."""
    job_id = queue.submit_locked_sync()
    process, flag = queue.start_and_hold(point)
    ended = tell(process, number)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    oracle.wait_until_left(queue.scene.destination)
    loads = oracle.assert_ledger(queue.scene.destination)
    assert loads == int(is_in)
    flag.unlink()
    finish(queue)
    assert oracle.assert_ledger(queue.scene.destination) == 1


@pytest.mark.parametrize(
    ("point", "number", "is_in"),
    [("publish.applied", signal.SIGTERM, False), ("publish.committed", signal.SIGINT, True)],
)
def test_told_inside_publish(
    make_queue: MakeQueue, point: str, number: signal.Signals, is_in: bool
) -> None:
    told_inside_publish(make_queue(2, batch_rows=10_000), point, number, is_in)


def test_told_when_its_job_is_done(make_queue: MakeQueue) -> None:
    """There is nothing to give back, so nothing is lost and it has done well."""
    queue = make_queue(2, batch_rows=10_000)
    job_id = queue.submit_locked_sync()
    process, _ = queue.start_and_hold("job.finished")
    ended = tell(process)
    assert ended.code == 0, ended
    assert "attempt_lost" not in ended.err, ended
    assert queue.job(job_id).status == "done"


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("point", ["publish.fenced", "publish.marked", "publish.moved"])
def test_told_anywhere_in_publish(
    make_queue: MakeQueue, point: str, number: signal.Signals, databases: int
) -> None:
    told_inside_publish(make_queue(databases, batch_rows=10_000), point, number, is_in=False)


def test_told_while_it_cannot_give_its_job_back(make_queue: MakeQueue) -> None:
    """It goes all the same; the job is taken back by the next, since its session is gone."""
    queue = make_queue(2)
    job_id = queue.submit_locked_sync()
    process, flag = queue.start_and_hold("fence.raised")
    with queue.locked(job_id):
        ended = tell(process)
    assert ended.code == 1, ended
    assert "leaves_work_behind" in ended.err, ended
    flag.unlink()
    finish(queue)


def tell_again(process: Process) -> bool:
    """An echo within a moment counts as the same signal; who means it goes on."""
    process.send(signal.SIGTERM)
    return not process.alive


def test_told_twice(make_queue: MakeQueue) -> None:
    queue = make_queue(2)
    job_id = queue.submit_locked_sync()
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


@pytest.mark.parametrize("number", BOTH)
def test_an_idle_worker_leaves_well(make_queue: MakeQueue, number: signal.Signals) -> None:
    queue = make_queue(2)
    ended = tell(queue.start_ready(), number)
    assert ended.code == 0, ended
    assert queue.worker_pids() == set()


def test_a_vacuum_that_is_told_to_stop_has_failed(make_queue: MakeQueue) -> None:
    queue = make_queue(2, sync={"mode": "append", "key": ["region", "id"]})
    scene = queue.scene
    flag = scene.flag("vacuuming")
    process = queue.start(failpoint=f"vacuum.chunk=wait:{flag}")
    queue.wait_for(queue.submit_locked_sync())
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("UPDATE orders SET total = total + 1, updated_at = now()")
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
    queue.submit_nothing(2000, max_attempts=100)
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
    queue = make_queue(1, worker={**QUICK, "max_attempts": 1})
    ended = queue.start("--once").wait()
    assert ended.code == 0, ended
    assert "0 done" in ended.out, ended
    first, second = queue.submit_nothing(2, max_attempts=100)
    assert queue.start("--once").wait().code == 0
    assert [queue.job(first).status, queue.job(second).status] == ["done", "pending"]
    with psycopg.connect(queue.scene.source, autocommit=True) as connection:
        connection.execute("ALTER TABLE orders RENAME TO gone")
    failing = queue.submit_locked_sync("orders")
    ended = queue.start("--burst", "--concurrency", "1").wait()
    assert ended.code == 1, ended
    assert queue.job(second).status == "done"
    assert queue.job(failing).status == "failed"
    assert "orders" in str(queue.job(failing).error)
    queue.burst()
