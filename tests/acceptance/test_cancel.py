"""Cancelling: after the answer nothing is published, whatever the worker is just doing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.oracle import Published, assert_idle, rows, scalar
from acceptance.processes import until
from acceptance.queueing import Queue
from acceptance.slow_stage import SlowStage
from chaos_seeds import chosen
from tidegate.core.errors import UsageError
from tidegate.jobs.job import JobStatus

WORKER = {"lease": "30s", "heartbeat": "5s", "poll": "1s", "sweep": "1s"}
FREE_WITHIN_SECONDS = 5.0


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowStage]:
    made = SlowStage(tmp_path)
    yield made
    made.let_go()


def test_a_long_stage_is_stopped_and_its_worker_is_free(
    make_scene: MakeScene, slow: SlowStage
) -> None:
    scene = make_scene(2, pipelines=slow.pipelines, worker=WORKER)
    queue = Queue(scene)
    worker = queue.start_ready("--concurrency", "1")
    queue.wait_until_ended(queue.submit_sync())
    before = scene.published()
    assert before.rows > 0
    scene.change()
    slow.close_gate()
    job_id = queue.submit_sync()
    worker.wait_for(lambda: slow.is_busy, "the transformation to run")
    started = time.monotonic()
    assert queue.cancel(job_id).status is JobStatus.CANCELLED
    assert scene.published() == before
    (after,) = queue.submit_nothing()
    queue.wait_until_ended(after)
    assert time.monotonic() - started < FREE_WITHIN_SECONDS
    assert queue.job(job_id).status == "cancelled"
    assert "why='cancelled'" in worker.err
    # Both cores of Spark were busy with what was cancelled: the next load needs one.
    slow.open_gate()
    queue.wait_until_ended(queue.submit_sync())
    scene.assert_exact()
    queue.assert_each_ended_once()


def test_a_run_of_its_own_is_stopped_in_spark_and_just_before(
    make_scene: MakeScene, slow: SlowStage
) -> None:
    scene = make_scene(2, pipelines=slow.pipelines, worker=WORKER)
    queue = Queue(scene)
    slow.close_gate()
    # The interrupt comes before there is anything in Spark to be interrupted.
    run, flag = scene.start_and_hold("batch.planned")
    assert queue.cancel(queue.running_job()).status is JobStatus.CANCELLED
    run.wait_for(lambda: "why='cancelled'" in run.err, "the run to hear of it")
    flag.unlink()
    ended = run.wait(30)
    assert ended.code == 0, ended
    assert scene.published().nothing

    run = scene.start()
    run.wait_for(lambda: slow.is_busy, "the transformation to run")
    job_id = queue.running_job()
    started = time.monotonic()
    assert queue.cancel(job_id).status is JobStatus.CANCELLED
    ended = run.wait()
    assert time.monotonic() - started < FREE_WITHIN_SECONDS
    assert ended.code == 0, ended
    assert f"job {job_id} was cancelled; nothing more was published" in ended.out, ended
    assert scene.published().nothing
    assert queue.ends_of(job_id) == ["cancelled"]
    assert_idle(scene.control)


# Where the publisher is when the cancel has answered, and which of the two has won.
POINTS = {
    "check.done": JobStatus.CANCELLED,
    "publish.fenced": JobStatus.CANCELLED,
    "publish.marked": JobStatus.CANCELLED,
    "publish.applied": JobStatus.CANCELLED,
    "publish.committed": JobStatus.DONE,
}


@pytest.mark.parametrize(
    "points",
    [
        ("check.done", "publish.applied", "publish.committed"),
        pytest.param(tuple(POINTS), marks=pytest.mark.chaos),
    ],
    ids=["some", "every"],
)
def test_a_publisher_that_stands_still_has_lost_unless_it_has_committed(
    make_scene: MakeScene, points: tuple[str, ...]
) -> None:
    scene = make_scene(2, batch_rows=10_000)
    queue = Queue(scene)
    scene.run()
    for point in points:
        scene.change(transactions=1)
        before = scene.published()
        run, flag = scene.start_and_hold(point)
        job_id = queue.running_job()
        assert queue.cancel(job_id).status is POINTS[point], point
        assert_not_mixed(queue, job_id, before)
        flag.unlink()
        ended = run.wait()
        assert ended.code == 0, ended
        assert "writeback_stale_attempt" in ended.err, ended
        assert_not_mixed(queue, job_id, before)
    scene.run()
    scene.assert_swept()


@pytest.mark.parametrize(
    "point",
    [
        "publish.marked",
        *(
            pytest.param(point, marks=pytest.mark.chaos)
            for point in POINTS
            if point != "publish.marked"
        ),
    ],
)
def test_a_publisher_that_goes_on_while_it_is_cancelled_is_waited_for(
    make_scene: MakeScene, point: str
) -> None:
    scene = make_scene(2, batch_rows=10_000)
    queue = Queue(scene)
    before = scene.published()
    run, flag = scene.start_and_hold(point)
    job_id = queue.running_job()
    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(queue.cancel, job_id)
        until(lambda: cancel_is_requested(scene, job_id) or cancelling.done(), "the request")
        flag.unlink()
        answer = cancelling.result()
    after = scene.published()
    assert_not_mixed(queue, job_id, before)
    assert queue.job(job_id).status == answer.status
    ended = run.wait()
    assert ended.code == 0, ended
    assert scene.published() == after
    scene.run()
    scene.assert_exact()


@pytest.mark.chaos
def test_a_cancel_at_a_random_moment_leaves_all_or_nothing(make_scene: MakeScene) -> None:
    scene = make_scene(2, batch_rows=10_000, worker=WORKER)
    queue = Queue(scene)
    queue.start_ready("--concurrency", "1")
    queue.wait_until_ended(queue.submit_sync())
    answers: list[JobStatus] = []
    rng, middle = random.Random(chosen(5)), 0.5
    for _ in range(100):
        scene.change(transactions=1)
        before = scene.published()
        job_id = queue.submit_sync()
        until(lambda job_id=job_id: has_plan(scene, job_id), "a plan")  # type: ignore[misc]
        time.sleep(middle * rng.uniform(0.6, 1.4))
        try:
            answers.append(queue.cancel(job_id).status)
        except UsageError as error:
            assert "done already" in error.message  # noqa: PT017
            answers.append(JobStatus.DONE)
        assert queue.job(job_id).status == answers[-1]
        assert_not_mixed(queue, job_id, before)
        # How long it takes to get to the publish depends on the machine: stay around it.
        middle *= 0.8 if answers[-1] is JobStatus.DONE else 1.25
    queue.wait_until_ended(queue.submit_sync())
    scene.assert_exact()
    queue.assert_each_ended_once()
    # Otherwise the moments were badly chosen.
    assert len(set(answers)) == 2, answers


def test_a_canceller_killed_halfway_is_finished_by_a_sweeper(make_scene: MakeScene) -> None:
    scene = make_scene(2, worker=WORKER)
    queue = Queue(scene)
    for point in ("cancel.requested", "cancel.fenced"):
        run, flag = scene.start_and_hold("check.done")
        job_id = queue.running_job()
        before = scene.published()
        scene.kill_at(point, "job", "cancel", str(job_id))
        assert queue.sweep()["cancelled"] == 0
        assert queue.job(job_id).status == "running"
        assert scalar(scene.control, "SELECT count(*) FROM tidegate_control.table_locks") == 1
        forget_patience(scene, job_id)
        assert queue.sweep()["cancelled"] == 1
        assert queue.job(job_id).status == "cancelled"
        assert_idle(scene.control)
        flag.unlink()
        ended = run.wait()
        assert ended.code == 0, ended
        assert scene.published() == before
        assert queue.ends_of(job_id) == ["cancelled"]
    scene.run()
    scene.assert_exact()


def test_of_several_cancels_at_once_and_of_later_ones_all_are_told_the_truth(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2)
    queue = Queue(scene)
    run, flag = scene.start_and_hold("publish.applied")
    job_id = queue.running_job()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(queue.cancel, job_id) for _ in range(4)]
    for answer in answers:
        error = answer.exception()
        if error is None:
            assert answer.result().status is JobStatus.CANCELLED
        else:
            assert "is cancelled already" in str(error)
    flag.unlink()
    assert run.wait().code == 0
    assert scene.published().nothing
    assert_idle(scene.control)
    with pytest.raises(UsageError, match="is cancelled already; nothing was changed"):
        queue.cancel(job_id)
    assert queue.ends_of(job_id) == ["cancelled"]
    unknown = uuid4()
    with pytest.raises(UsageError, match=f"there is no job {unknown}"):
        queue.cancel(unknown)
    waiting = queue.submit_sync()
    assert queue.cancel(waiting).status is JobStatus.CANCELLED
    assert queue.ends_of(waiting) == ["cancelled"]
    assert_idle(scene.control)


def assert_not_mixed(queue: Queue, job_id: UUID, before: Published) -> None:
    """Cancelled and absent, or done and present: rows, marker and watermark go together."""
    scene, after = queue.scene, queue.scene.published()
    if queue.job(job_id).status == "done":
        assert after.rows == scalar(scene.source, "SELECT count(*) FROM public.orders")
        assert after.markers == before.markers + 1
        assert after.version == before.version + 1
    else:
        assert queue.job(job_id).status == "cancelled"
        assert after == before


def cancel_is_requested(scene: Scene, job_id: UUID) -> bool:
    query = "SELECT cancel_requested_at IS NOT NULL FROM tidegate_control.jobs WHERE job_id = %s"
    return bool(scalar(scene.control, query, job_id))


def has_plan(scene: Scene, job_id: UUID) -> bool:
    query = "SELECT plan IS NOT NULL FROM tidegate_control.jobs WHERE job_id = %s"
    return bool(scalar(scene.control, query, job_id))


def forget_patience(scene: Scene, job_id: UUID) -> None:
    """The time that a canceller has is over."""
    rows(
        scene.control,
        "UPDATE tidegate_control.job_queue SET lease_until = now() - interval '1 second'"
        " WHERE job_id = %s",
        job_id,
    )
