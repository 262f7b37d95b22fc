"""Workers and their Spark: kept warm, shared by jobs side by side, started again when it died."""

from __future__ import annotations

import os
import signal

import pytest

from acceptance.conftest import CONNECT, LOCAL, MakeQueue
from acceptance.processes import Process, until

# Each says that it has come, and waits for the other.
MEETING = """\
import pathlib, time
import tidegate as tg

FOLDER = pathlib.Path({folder!r})


def meet(mine, other):
    (FOLDER / mine).touch()
    deadline = time.monotonic() + 60
    while not (FOLDER / other).exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{{other}} never came")
        time.sleep(0.02)


@tg.sync(source="source:public.orders", target="warehouse:raw.orders",
         key=["region", "id"], cursor="updated_at")
def orders(df):
    meet("orders", "returns")
    return df


@tg.sync(source="source:public.returns", target="warehouse:raw.returns",
         key=["region", "id"], cursor="updated_at")
def returns(df):
    meet("returns", "orders")
    return df
"""
COLUMNS = ("region", "id", "status", "total", "seq", "updated_at")


def java(process: Process) -> list[int]:
    return process.members("org.apache.spark.deploy.SparkSubmit")


def test_two_syncs_run_side_by_side(make_queue: MakeQueue) -> None:
    queue = make_queue(2, tables=("orders", "returns"), columns=COLUMNS, spark=CONNECT)
    scene = queue.scene
    scene.pipelines = MEETING.format(folder=str(scene.folder))
    scene.write_project()
    jobs = [queue.submit_locked_sync(name) for name in ("orders", "returns")]
    queue.burst("--concurrency", "2")
    assert [queue.job(one).attempt_count for one in jobs] == [1, 1]
    queue.assert_all_done()


@pytest.mark.chaos
def test_spark_stays_warm_between_jobs_and_is_started_again_when_it_died(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(1, spark=LOCAL, partitions=1)
    process = queue.start("--concurrency", "1")
    queue.wait_for(queue.submit_locked_sync())
    warm = java(process)
    assert len(warm) == 1
    queue.scene.change()
    queue.wait_for(queue.submit_locked_sync())
    assert java(process) == warm
    os.kill(warm[0], signal.SIGKILL)
    until(lambda: java(process) == [], "the JVM to be gone")
    queue.scene.change()
    job_id = queue.submit_locked_sync()
    queue.wait_for(job_id)
    assert len(java(process)) == 1
    assert java(process) != warm
    queue.assert_all_done()
    process.send(signal.SIGTERM)
    assert process.wait().code in (0, 1)
    until(lambda: process.members() == [], "its Spark to be gone", 20)
