"""Workers whose control database goes away, comes back, or falls silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.oracle import scalar
from acceptance.processes import until
from acceptance.proxy import SilentProxy
from acceptance.queueing import Queue
from tidegate.core.errors import TidegateError
from tidegate.jobs.job import NOTHING, JobRequest, LockAt
from tidegate.jobs.queue import Jobs
from tidegate.postgres.embedded import EmbeddedServer

LOST = "control_database_lost"
WORKER = {
    "lease": "18s",
    "heartbeat": "3s",
    "poll": "1s",
    "sweep": "1s",
    "retry_after": "1s",
    "retry_at_most": "2s",
}
ANSWER_SECONDS = 3.0
"""a sixth of the lease"""
SLACK_SECONDS = 5.0


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[SilentProxy]:
    made = SilentProxy(server.port)
    yield made
    made.close()


def behind(scene: Scene, proxy: SilentProxy) -> Scene:
    """The project reaches its control database through the proxy; the test goes around it."""
    direct = scene.control
    scene.control = make_conninfo(direct, port=proxy.port)
    scene.write_project()
    scene.control = direct
    return scene


@contextmanager
def submitting(queue: Queue, jobs: int, pause: float) -> Iterator[Callable[[], None]]:
    """Submit jobs all the while, each until it is in; calling it waits for the last."""

    def submit() -> None:
        for number in range(jobs):
            request = JobRequest("shop", NOTHING, f"nothing-{number}", None, lock_at=LockAt.NEVER)
            request = replace(request, idempotency_key=f"key-{number}")
            while True:
                try:
                    with queue.opened() as project, project.context.plane.connect() as control:
                        Jobs(project.context.plane).submit(control, request, "test")
                    break
                except (psycopg.Error, TidegateError):
                    time.sleep(0.05)
            time.sleep(pause)

    thread = threading.Thread(target=submit)
    thread.start()
    yield thread.join
    thread.join()


def assert_all_done(queue: Queue, jobs: int) -> None:
    until(lambda: queue.counts() == {"done": jobs}, f"{jobs} jobs to be done")
    queue.assert_ended_once()


def test_jobs_are_done_once_while_postgres_is_stopped_and_crashes(
    make_scene: MakeScene, doomed: EmbeddedServer
) -> None:
    scene = make_scene(2, control=doomed.conninfo(), worker=WORKER)
    queue = Queue(scene)
    worker = queue.start_ready("--concurrency", "4")
    with submitting(queue, 40, pause=0.02) as submitted:
        for how in ("fast", "immediate"):
            seen = sum(queue.counts().values())
            until(lambda seen=seen: sum(queue.counts().values()) > seen + 5, "some jobs")  # type: ignore[misc]
            lost = worker.err.count(LOST)
            assert doomed.stop(how)
            worker.wait_for(lambda lost=lost: worker.err.count(LOST) > lost, "it to notice")  # type: ignore[misc]
            doomed.start()
        submitted()
    assert_all_done(queue, 40)
    assert worker.alive
    assert "Traceback" not in worker.err, worker.err


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.chaos)])
def test_jobs_are_done_once_while_every_session_is_ended_twice_a_second(
    make_scene: MakeScene, seconds: int
) -> None:
    scene = make_scene(
        3, tables=("orders", "parts"), worker={**WORKER, "max_attempts": "50"}, batch_rows=20
    )
    queue = Queue(scene)
    worker = queue.start_ready("--concurrency", "2")
    loads = [queue.submit_sync("orders"), queue.submit_sync("parts")]
    number = 5 * seconds
    ended = 0
    with submitting(queue, number, pause=0.1) as submitted:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended += end_sessions(scene)
            time.sleep(0.5)
        submitted()
    assert ended > 2 * seconds
    assert_all_done(queue, number + len(loads))
    scene.assert_exact()
    assert worker.alive
    assert "Traceback" not in worker.err, worker.err


def test_a_worker_notices_that_what_it_listens_on_has_fallen_silent(
    make_scene: MakeScene, proxy: SilentProxy
) -> None:
    scene = behind(make_scene(3, worker=WORKER), proxy)
    queue = Queue(scene)
    worker = queue.start_ready()
    queue.wait_until_ended(*queue.submit_nothing())
    proxy.fall_silent(for_new_lines=False)
    started = time.monotonic()
    (job_id,) = queue.submit_nothing()
    queue.wait_until_ended(job_id)
    assert time.monotonic() - started < 1 + ANSWER_SECONDS + SLACK_SECONDS
    assert "control_database_lost" in worker.err
    assert_all_done(queue, 2)


def test_a_worker_that_cannot_beat_gives_its_attempt_up_before_its_lease_is_over(
    make_scene: MakeScene, proxy: SilentProxy
) -> None:
    worker = {**WORKER, "lease": "9s", "heartbeat": "3s"}
    scene = behind(make_scene(3, worker=worker), proxy)
    queue = Queue(scene)
    job_id = queue.submit_sync()
    first, flag = queue.start_and_hold("check.done", "--concurrency", "1")
    proxy.fall_silent(for_new_lines=True)
    first.wait_for(lambda: "attempt_lost" in first.err, "the worker to give up")
    assert lease_lasts(scene, job_id)
    assert "why='its lease is running out'" in first.err
    # What is left of the first worker's session still holds its lock, as after a half-open line.
    second = queue.start_ready(
        "--concurrency", "1", before=("--set", f"project.control={scene.control}")
    )
    queue.wait_until_ended(job_id)
    assert queue.job(job_id).status == "done"
    assert scalar(
        scene.control,
        "SELECT array_agg(outcome ORDER BY started_at) FROM tidegate_control.job_attempts",
    ) == ["lost", "done"]
    after = scene.published()
    flag.unlink()
    first.wait_for(lambda: "writeback_stale_attempt" in first.err, "the worker to let go")
    proxy.speak_again()
    assert scene.published() == after
    scene.assert_exact()
    queue.assert_each_ended_once()
    # The first one has found its way back.
    second.kill_all()
    queue.wait_until_ended(*queue.submit_nothing())


def test_a_job_is_found_without_being_announced_and_on_time(make_scene: MakeScene) -> None:
    poll = 3.0
    scene = make_scene(1, worker={**WORKER, "poll": f"{poll:.0f}s"})
    queue = Queue(scene)
    queue.start_ready()
    queue.wait_until_ended(*queue.submit_nothing())
    started = time.monotonic()
    quiet = submit_without_notice(scene)
    queue.wait_until_ended(quiet, seconds=poll + SLACK_SECONDS)
    assert time.monotonic() - started < poll + SLACK_SECONDS
    # One that waits for a table, and whose time has come long ago, must not hide the others.
    waiting = submit_without_notice(
        scene,
        "UPDATE tidegate_control.job_queue SET lock_resource = 'held' WHERE job_id = %s",
        "INSERT INTO tidegate_control.table_locks (resource, job_id) VALUES ('held', %s)",
    )
    late = []
    for delay in (0.3, 1.3):
        (job_id,) = queue.submit_nothing(delay_seconds=delay)
        queue.wait_until_ended(job_id)
        late.append(seconds_late(scene, job_id, delay))
    assert max(late) < 1.5, late
    assert min(late) >= 0, late
    assert queue.job(waiting).status == "pending"


def end_sessions(scene: Scene) -> int:
    """pg_terminate_backend for whatever Tidegate has open on its control database."""
    found = scalar(
        scene.control,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'tidegate%%'",
    )
    assert isinstance(found, int)
    return found


def lease_lasts(scene: Scene, job_id: UUID) -> bool:
    query = "SELECT lease_until > now() FROM tidegate_control.job_queue WHERE job_id = %s"
    return bool(scalar(scene.control, query, job_id))


def submit_without_notice(scene: Scene, *also: str) -> UUID:
    """A job by plain SQL; nobody is told."""
    job_id = uuid4()
    with psycopg.connect(scene.control) as connection:
        connection.execute(
            "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, payload, submitted_by,"
            " lock_at) VALUES (%s, 'shop', 'noop', 'quiet', '{}', 'by hand', 'never')",
            (job_id,),
        )
        connection.execute(
            "INSERT INTO tidegate_control.job_queue (job_id, project, kind, visible_at)"
            " VALUES (%s, 'shop', 'noop', now())",
            (job_id,),
        )
        for statement in also:
            connection.execute(statement, (job_id,))  # type: ignore[arg-type]
    return job_id


def seconds_late(scene: Scene, job_id: UUID, delay: float) -> float:
    """How long after its time a job was claimed, by the database's clock."""
    found = scalar(
        scene.control,
        "SELECT extract(epoch FROM a.started_at - j.submitted_at)::float8 - %s"
        " FROM tidegate_control.jobs j JOIN tidegate_control.job_attempts a USING (job_id)"
        " WHERE j.job_id = %s",
        delay,
        job_id,
    )
    assert isinstance(found, float)
    return found
