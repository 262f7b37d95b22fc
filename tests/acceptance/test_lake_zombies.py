"""Attempts stopped, told to go or cancelled on the way into a lake: one of them moves main."""

from __future__ import annotations

import signal

import psycopg
import pytest

from acceptance.conftest import LOCAL, MakeQueue, MakeScene
from acceptance.harness import Scene
from acceptance.queueing import Queue
from acceptance.spark_server import SparkServer
from acceptance.test_named_points import kill_at
from acceptance.test_run_signals import jobs
from acceptance.test_worker_signals import assert_given_back, tell
from acceptance.test_zombies import (
    WORKER,
    assert_zombie_is_harmless,
    run_once_the_lease_is_over,
    stopped_past_its_lease,
)
from tidegate.jobs.job import JobStatus

# Nobody has to wait for it: the test itself says that it is over.
LONG_LEASE = {"lease": "60s", "heartbeat": "20s"}
# After the last of these main has moved.
POINTS = ("branch.created", "branch.staged", "intent.noted", "branch.forwarded")


def loads(scene: Scene) -> list[str]:
    """The loads that main is made of, newest first."""
    return scene.files.loads("orders")


def expire_lease(scene: Scene) -> None:
    """The holder has not been heard of for too long."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        connection.execute(
            "UPDATE tidegate_control.job_queue SET lease_until = now() - interval '1 second'"
        )


@pytest.mark.chaos
def test_a_zombie_with_its_jvm_moves_nothing(
    make_scene: MakeScene, spark_server: SparkServer
) -> None:
    """Its staged files are its snapshot's own; whoever sweeps must not take them for rubbish."""
    scene = make_scene(2, lake=True, worker=WORKER, spark=LOCAL, sync={"mode": "append"})
    zombie, flag = scene.start_and_hold("intent.noted")
    zombie.stop()
    scene.use_spark({"remote": spark_server.url})
    run_once_the_lease_is_over(scene, zombie)
    scene.assert_exact()
    flag.unlink()
    assert_zombie_is_harmless(scene, zombie)
    scene.assert_swept()


@pytest.mark.parametrize(
    "held_at", ["branch.staged", pytest.param("fence.raised", marks=pytest.mark.chaos)]
)
def test_a_zombie_wakes_up_while_its_successor_is_at_work(
    make_scene: MakeScene, held_at: str
) -> None:
    """Its fast-forward comes between what the other has looked at and what that one does.

    All orders of two attempts are in make chaos.
    """
    scene = make_scene(2, lake=True, worker=LONG_LEASE)
    zombie, zombie_flag = scene.start_and_hold("intent.noted")
    zombie.stop()
    expire_lease(scene)
    successor, flag = scene.start_and_hold(held_at)
    zombie_flag.unlink()
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    assert "writeback_stale_attempt" in ended.err, ended
    assert loads(scene) == []
    flag.unlink()
    ended = successor.wait()
    assert ended.code == 0, ended
    scene.assert_swept()


@pytest.mark.parametrize(
    "points",
    [
        ("branch.staged", "intent.noted", "branch.forwarded"),
        pytest.param(
            ("check.done", "branch.created", "publish.committed"), marks=pytest.mark.chaos
        ),
    ],
)
def test_a_cancelled_publisher_has_lost_unless_main_has_moved(
    make_scene: MakeScene, points: tuple[str, ...]
) -> None:
    """By Ctrl-C in its first load, and later about the commit; farther from it by make chaos."""
    scene = make_scene(2, lake=True, batch_rows=10_000)
    queue = Queue(scene)
    interrupt(scene)
    scene.run()
    assert scene.assert_exact() == 1
    for point in points:
        scene.change(transactions=1)
        before = loads(scene)
        run, flag = scene.start_and_hold(point)
        job_id = queue.running_job()
        answer = queue.cancel(job_id)
        after = loads(scene)
        if point in ("branch.forwarded", "publish.committed"):
            assert answer.status is JobStatus.DONE, point
            assert after[1:] == before
        else:
            assert answer.status is JobStatus.CANCELLED, point
            assert after == before
        flag.unlink()
        ended = run.wait()
        assert ended.code == 0, ended
        assert "writeback_stale_attempt" in ended.err, ended
        assert loads(scene) == after
        assert queue.job(job_id).status == answer.status
    scene.run()
    scene.assert_swept()


def interrupt(scene: Scene) -> None:
    """Ctrl-C cancels, and main stays where it is."""
    process, flag = scene.start_and_hold("intent.noted")
    process.send(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 130, ended
    assert "interrupted, 1 job cancelled; run again at any time" in ended.err, ended
    assert jobs(scene) == [("cancelled", 0, True, False)]
    assert loads(scene) == []
    flag.unlink()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("stage.done", marks=pytest.mark.chaos),
        pytest.param("intent.noted", marks=pytest.mark.chaos),
        "branch.forwarded",
    ],
)
def test_a_worker_told_to_go_is_gone_soon_and_the_next_one_finishes(
    make_queue: MakeQueue, point: str
) -> None:
    """After main has moved; before that by make chaos."""
    queue = make_queue(2, lake=True, batch_rows=10_000)
    job_id = queue.submit_locked_sync()
    process, flag = queue.start_and_hold(point)
    ended = tell(process)
    assert ended.code == 1, ended
    assert_given_back(queue, job_id)
    moved = loads(queue.scene)
    assert len(moved) == int(point == "branch.forwarded")
    flag.unlink()
    queue.burst()
    queue.assert_all_done()
    assert queue.scene.assert_ledger() == 1
    assert loads(queue.scene)[-1:] == moved or not moved
    queue.scene.assert_nothing_staged()


@pytest.mark.chaos
def test_a_worker_told_to_go_while_spark_merges(make_queue: MakeQueue) -> None:
    """What Spark still does upon the branch, after its client has gone, is nobody's any more."""
    queue = make_queue(2, lake=True)
    queue.submit_locked_sync()
    queue.burst()
    queue.scene.change()
    job_id = queue.submit_locked_sync()
    process, flag = queue.start_and_hold("branch.created")
    before = written(queue.scene)
    flag.unlink()
    process.wait_for(lambda: written(queue.scene) > before, "Spark to write rows")
    tell(process)
    assert_given_back(queue, job_id)
    queue.burst()
    queue.assert_all_done()
    queue.scene.assert_nothing_staged()


def written(scene: Scene) -> int:
    """How many files Spark has written or begun, besides those that were staged."""
    return len(list(scene.files.data("orders").glob("*.parquet")))


def test_the_sweeper_tidies_every_table_of_a_lake(make_queue: MakeQueue) -> None:
    queue = make_queue(2, lake=True, tables=("orders", "refunds"))
    scene = queue.scene
    for name in scene.tables:
        assert scene.start(name, "stage.done=kill").wait().code == -signal.SIGKILL
    assert len({file.partition("/")[0] for file in scene.staged()}) == 2
    queue.sweep()
    assert scene.staged() == []


@pytest.mark.chaos
@pytest.mark.parametrize(
    "point",
    ["fence.raised", "batch.planned", "stage.done", "check.done", "branch.created",
     "branch.staged", "intent.noted", "branch.forwarded", "publish.committed", "branch.dropped",
     "job.finishing"],
)  # fmt: skip
def test_a_zombie_anywhere(make_scene: MakeScene, point: str) -> None:
    stopped_past_its_lease(make_scene(3, lake=True, worker=WORKER), point)


@pytest.mark.chaos
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("held_at", ["fence.raised", *POINTS])
def test_two_attempts_in_every_order(make_scene: MakeScene, point: str, held_at: str) -> None:
    """One was stopped at a point, the other has got to another: whoever goes on first."""
    for zombie_first in (True, False):
        scene = make_scene(2, lake=True, worker=LONG_LEASE)
        scene.run()
        scene.change()
        zombie, zombie_flag = scene.start_and_hold(point)
        zombie.stop()
        expire_lease(scene)
        if point == "branch.forwarded":
            scene.change()  # else there is nothing for the other to do
        successor, flag = scene.start_and_hold(held_at)
        runs = [(zombie, zombie_flag), (successor, flag)]
        for process, its_flag in runs if zombie_first else reversed(runs):
            its_flag.unlink()
            process.resume()
            ended = process.wait()
            assert ended.code == 0, ended
            assert ("writeback_stale_attempt" in ended.err) == (process is zombie), ended
        scene.assert_exact()
        scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["stage.done", "intent.noted", "branch.forwarded"])
def test_killed_again_by_whoever_finds_the_dead(make_scene: MakeScene, point: str) -> None:
    """The healer dies too, at every point that it passes."""
    scene = make_scene(2, lake=True)
    for again in ("fence.raised", *POINTS):
        scene.change()
        kill_at(scene, point)
        if point == "branch.forwarded":
            scene.change()
        kill_at(scene, again)
    scene.run()
    scene.assert_swept()
