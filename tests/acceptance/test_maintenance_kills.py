"""Maintenance killed, told to go, and beside others who write: no row is lost, none comes twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from acceptance import lake_writer, oracle
from acceptance.conftest import LOCAL, MakeQueue
from acceptance.harness import Scene
from acceptance.lake_oracle import SCHEMA
from acceptance.processes import until
from acceptance.queueing import Queue
from acceptance.spark_server import SparkServer
from acceptance.test_lake_faults import Elsewhere, elsewhere
from acceptance.test_worker_signals import tell
from integration.maintained import age, order_of
from tidegate.core.table_actions import Action
from tidegate.jobs.job import LockAt

__all__ = ["elsewhere"]

EVERYTHING = order_of()
REWRITE = order_of(Action.REWRITE_DATA_FILES)
ORPHANS = order_of(Action.REMOVE_ORPHAN_FILES)
POINTS = (
    "maintenance.healed",
    "action.started",
    "action.done",
    "orphans.listed",
    "orphans.deleted",
)
WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND starts_with(query, 'UPDATE iceberg_tables SET metadata_location')"
)


def make_table(make_queue: MakeQueue, **options: object) -> Queue:
    """A table of a lake that was filled in many small loads."""
    queue = make_queue(2, lake=True, batch_rows=10, **options)
    queue.scene.run()
    assert files(queue.scene) > 3
    return queue


def files(scene: Scene) -> int:
    table = scene.files.table("orders")
    assert table is not None
    return len(table.inspect.data_files())


def metadata(scene: Scene) -> str:
    table = scene.files.table("orders")
    assert table is not None
    return str(table.metadata_location)


def assert_rows(scene: Scene, others: int = 0) -> None:
    """What the source has, and what others have put in, each once."""
    expected = oracle.read_rows(scene.source, ("public", "orders"), scene.columns, scene.key)
    found = scene.read_target("orders")
    own = [row for row in found if row[0] != lake_writer.REGION]
    oracle.assert_same_rows(expected, own)
    assert len({row for row in found if row[0] == lake_writer.REGION}) == others
    assert len(found) == len(own) + others


def actions(queue: Queue, job_id: UUID) -> list[tuple[str, str]]:
    with psycopg.connect(queue.scene.control, autocommit=True) as connection:
        return connection.execute(
            "SELECT action, detail ->> 'status' FROM tidegate_control.job_actions"
            " WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()


def leave_orphan(scene: Scene) -> Path:
    """A file that nobody knows any more."""
    file = scene.files.data("orders") / f"left-{scene.number()}.parquet"
    file.touch()
    age(file)
    return file


@contextmanager
def held_commits(scene: Scene) -> Iterator[None]:
    """Whoever commits to a table of the lake waits."""
    with psycopg.connect(scene.control) as connection:
        connection.execute(
            sql.SQL("SELECT FROM {}.iceberg_tables FOR UPDATE").format(sql.Identifier(SCHEMA))
        )
        yield
        connection.rollback()


def test_told_to_go_killed_and_beside_a_writer_at_work(make_queue: MakeQueue) -> None:
    """One table for all of it: each begins with what the one before has left."""
    queue = make_table(make_queue)
    tell_to_go_in_the_middle_of_a_rewrite(queue)
    queue.scene.change(1)
    queue.scene.run()
    assert files(queue.scene) > 1
    kill_at_every_point(queue)
    queue.scene.change(1)
    keep_the_staged_files_of_a_writer(queue)


def tell_to_go_in_the_middle_of_a_rewrite(queue: Queue) -> None:
    scene = queue.scene
    before, small = metadata(scene), files(scene)
    with held_commits(scene):
        job_id = queue.submit_maintenance(REWRITE)
        process = queue.start()
        process.wait_for(lambda: oracle.scalar(scene.control, WAITS) == 1, "the rewrite to commit")
        ended = tell(process)
        assert ended.code == 1, ended
        job = queue.job(job_id)
        assert (job.status, job.error) == ("failed", "Worker received SIGTERM"), job
        oracle.assert_idle(scene.control)
        assert_rows(scene)
    until(lambda: oracle.scalar(scene.control, WAITS) == 0, "the late commit to be refused")
    assert metadata(scene) == before
    assert_rows(scene)
    next_id = queue.submit_maintenance(REWRITE)
    queue.burst()
    assert actions(queue, next_id) == [("rewrite_data_files", "done")]
    assert files(scene) < small
    assert_rows(scene)
    queue.assert_ended_once()


def kill_at(queue: Queue, point: str) -> None:
    """A worker dies at a point of maintenance; its job is taken back."""
    ended = queue.start(failpoint=f"{point}=kill").wait()
    assert ended.code == -signal.SIGKILL, ended
    queue.sweep()


def assert_done_once(queue: Queue, job_id: UUID, kills: int) -> None:
    """The last attempt has ended the job, and no action was done twice."""
    job = queue.job(job_id)
    assert (job.status, job.attempt_count, job.crash_count) == ("done", kills + 1, kills), job
    recorded = actions(queue, job_id)
    assert [action for action, _ in recorded] == [one.value for one in Action]
    assert {status for _, status in recorded} <= {"done", "skipped"}
    assert_rows(queue.scene)
    queue.assert_ended_once()


def kill_at_every_point(queue: Queue) -> None:
    """The next worker takes the job up, each time."""
    orphan, small = leave_orphan(queue.scene), files(queue.scene)
    job_id = queue.submit_maintenance(EVERYTHING, max_attempts=10)
    for point in POINTS:
        kill_at(queue, point)
        assert_rows(queue.scene)
    # It comes back after a while; a burst would not wait for it.
    worker = queue.start()
    queue.wait_for(job_id)
    worker.send(signal.SIGTERM)
    assert worker.wait().code == 0
    assert_done_once(queue, job_id, len(POINTS))
    assert not orphan.exists()
    assert files(queue.scene) < small


@pytest.mark.chaos
def test_killed_with_its_jvm_in_the_middle_of_a_rewrite(
    make_queue: MakeQueue, spark_server: SparkServer
) -> None:
    queue = make_table(make_queue)
    scene = queue.scene
    scene.use_spark(LOCAL)
    before = metadata(scene)
    with held_commits(scene):
        job_id = queue.submit_maintenance(REWRITE)
        process = queue.start()
        process.wait_for(lambda: oracle.scalar(scene.control, WAITS) == 1, "the rewrite to commit")
        process.kill_all()
        scene.use_spark({"remote": spark_server.url})
        queue.sweep()
    until(lambda: oracle.scalar(scene.control, WAITS) == 0, "the late commit to be refused")
    assert metadata(scene) == before
    queue.burst()
    assert (queue.job(job_id).status, queue.ends_of(job_id)) == ("done", ["done"])
    assert files(scene) == 1
    assert_rows(scene)


def keep_the_staged_files_of_a_writer(queue: Queue) -> None:
    """They are nobody's orphans, even if they look old and nothing else protects the table."""
    scene = queue.scene
    writer, flag = scene.start_and_hold("stage.done")
    staged = [scene.files.data("orders") / one for one in scene.staged()]
    assert staged
    # What Spark has written itself lies in no folder that is noted.
    unnoted = leave_orphan(scene)
    older = leave_orphan(scene)
    age(older, days=30)
    age(*staged)
    with psycopg.connect(scene.control, autocommit=True) as connection:
        connection.execute("DELETE FROM tidegate_control.table_locks")
        connection.execute(
            "UPDATE tidegate_control.jobs SET started_at = now() - interval '20 days'"
            " WHERE status = 'running'"
        )
        first = queue.submit_maintenance(ORPHANS)
        queue.burst()
        assert (unnoted.exists(), older.exists()) == (True, False)
        connection.execute(
            "UPDATE tidegate_control.jobs SET started_at = now() - interval '1 minute'"
            " WHERE status = 'running'"
        )
        second = queue.submit_maintenance(ORPHANS)
        queue.burst()
        kept = connection.execute(
            "SELECT kept, count(*) FROM tidegate_control.orphan_files WHERE job_id = %s"
            " GROUP BY kept ORDER BY 2",
            (second,),
        ).fetchall()
    assert all(one.exists() for one in staged)
    assert not unnoted.exists()
    assert (None, 1) in kept
    assert ("staged by an attempt that may be at work", len(staged)) in kept
    assert [queue.job(one).status for one in (first, second)] == ["done", "done"]
    flag.unlink()
    ended = writer.wait()
    # Maintenance has taken the table from it, so what it staged is staged again.
    assert "writeback_stale_attempt" in ended.err, ended
    with psycopg.connect(scene.control, autocommit=True) as connection:
        connection.execute("UPDATE tidegate_control.job_queue SET lease_until = now()")
    scene.run()
    assert_rows(scene)


def maintain_beside_writers(queue: Queue, elsewhere: Elsewhere, rounds: int) -> None:
    """A sync, and somebody else who commits every second, while all is put in order."""
    scene = queue.scene
    elsewhere.write_to(scene)
    workers = [queue.start("--concurrency", "1") for _ in range(2)]
    jobs = []
    for _ in range(rounds):
        scene.change(1)
        jobs.append(queue.submit_sync())
        jobs.append(queue.submit_maintenance(EVERYTHING, lock_at=LockAt.CLAIM))
        queue.wait_until_ended(*jobs, seconds=240)
    total = elsewhere.end()
    assert total >= rounds
    assert [queue.job(one).status for one in jobs] == ["done"] * len(jobs)
    for worker in workers:
        worker.send(signal.SIGTERM)
        assert worker.wait().code in (0, 1)
    scene.run()
    assert_rows(scene, total)
    queue.assert_ended_once()


@pytest.mark.chaos
def test_maintained_for_long_while_others_write(
    make_queue: MakeQueue, elsewhere: Elsewhere
) -> None:
    maintain_beside_writers(make_table(make_queue), elsewhere, 15)


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["action.started", "action.done"])
def test_killed_between_any_two_actions(make_queue: MakeQueue, point: str) -> None:
    queue = make_table(make_queue)
    for passage in range(1, len(Action) + 1):
        queue.scene.change(1)
        queue.scene.run()
        job_id = queue.submit_maintenance(EVERYTHING)
        kill_at(queue, f"{point}@{passage}")
        queue.burst()
        assert_done_once(queue, job_id, 1)
