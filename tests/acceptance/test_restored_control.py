"""A control database from an older dump: it says so, loads nothing twice, and goes on."""

from __future__ import annotations

import re
import subprocess
import uuid
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.oracle import rows, scalar
from acceptance.queueing import Queue
from acceptance.test_named_points import kill_at
from tidegate.jobs.job import JobStatus
from tidegate.postgres.embedded import EmbeddedServer

WORKER = {"lease": "30s", "heartbeat": "1s", "poll": "1s", "sweep": "1s"}


class Backup:
    """A dump of a control database, and its way back under the same name."""

    def __init__(self, scene: Scene, server: EmbeddedServer, folder: Path) -> None:
        self._control, self._server = scene.control, server
        self._file = folder / f"control-{uuid.uuid4().hex}.dump"
        self._run("pg_dump", "--format", "custom", "--file", str(self._file), self._control)

    def restore(self) -> None:
        """Drop what is there, with all its sessions, and load the dump in its place."""
        name = conninfo_to_dict(self._control)["dbname"]
        for statement in (f'DROP DATABASE "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"'):
            rows(self._server.conninfo("postgres"), statement)
        self._run("pg_restore", "--dbname", self._control, "--no-owner", str(self._file))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._server.bin_directory / program), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr


def markers(scene: Scene) -> object:
    return scalar(
        scene.destination,
        "SELECT array_agg((update_id, inserted)::text ORDER BY inserted, update_id)"
        " FROM tidegate.table_updates",
    )


def token_seen(scene: Scene) -> int:
    found = scalar(scene.destination, "SELECT token FROM tidegate.fences")
    assert isinstance(found, int)
    return found


def raise_token(scene: Scene) -> None:
    """Many more jobs than these have run between the dump and now."""
    sequence = "tidegate_control.fence_tokens"
    scalar(scene.control, f"SELECT setval('{sequence}', nextval('{sequence}') + 1000)")


def told(log: str) -> dict[str, str]:
    """What the warning says."""
    (line,) = [one for one in log.splitlines() if "control_database_restored" in one]
    return dict(re.findall(r"(\w+)='?([^ ']+)", line))


def assert_told(scene: Scene, log: str, seen: int) -> None:
    said = told(log)
    assert said["database"] == conninfo_to_dict(scene.control)["dbname"]
    assert said["table"] == "raw.orders"
    assert int(said["our_token"]) < seen
    assert int(said["seen_in_table"]) == seen
    assert int(said["lifted_to"]) > seen


def test_jobs_of_an_older_dump_are_worked_again_and_load_nothing_twice(
    make_scene: MakeScene, server: EmbeddedServer, tmp_path: Path
) -> None:
    scene = make_scene(3, worker=WORKER, batch_rows=20)
    queue = Queue(scene)
    pending = queue.submit_sync()
    backup = Backup(scene, server, tmp_path)
    raise_token(scene)
    ended = scene.run()
    assert "control_database_restored" not in ended.err
    before, seen = markers(scene), token_seen(scene)
    backup.restore()
    assert queue.job(pending).status == "pending"
    worker = queue.start_ready()
    queue.wait_until_ended(pending)
    assert queue.job(pending).status == "done"
    assert_told(scene, worker.err, seen)
    assert markers(scene) == before
    scene.assert_exact()
    scene.change()
    queue.wait_until_ended(queue.submit_sync())
    assert worker.err.count("control_database_restored") == 1
    scene.assert_exact()
    queue.assert_each_ended_once()


def test_an_attempt_that_was_running_in_the_dump_is_taken_up_where_it_was(
    make_scene: MakeScene, server: EmbeddedServer, tmp_path: Path
) -> None:
    scene = make_scene(3, worker=WORKER, batch_rows=20)
    queue = Queue(scene)
    process, flag = scene.start_and_hold("check.done")
    job_id = queue.running_job()
    backup = Backup(scene, server, tmp_path)
    flag.unlink()
    assert process.wait().code == 0
    raise_token(scene)
    scene.change()
    scene.run()
    before, seen = markers(scene), token_seen(scene)
    backup.restore()
    assert queue.job(job_id).status == "running"
    ended = scene.run()
    assert "found nothing new" in ended.out, ended
    assert_told(scene, ended.err, seen)
    assert markers(scene) == before
    scene.assert_exact()
    scene.change()
    assert "control_database_restored" not in scene.run().err
    scene.assert_exact()


def test_a_process_from_before_the_restore_cannot_publish(
    make_scene: MakeScene, server: EmbeddedServer, tmp_path: Path
) -> None:
    """It holds the newest token that the table has seen, and the old database knows of no such."""
    scene = make_scene(3, worker={**WORKER, "heartbeat": "10s"})
    queue = Queue(scene)
    for answer in ("a cancel", "a sweep", "a new run"):
        before = scene.published()
        kill_at(scene, "batch.planned")
        job_id = queue.running_job()
        backup = Backup(scene, server, tmp_path)
        raise_token(scene)
        old, flag = scene.start_and_hold("check.done")
        seen = token_seen(scene)
        backup.restore()
        if answer == "a cancel":
            assert queue.cancel(job_id).status is JobStatus.CANCELLED
        elif answer == "a sweep":
            assert queue.sweep()["reclaimed"] == 1
        else:
            scene.run()
        after = scene.published()
        assert (after == before) == (answer != "a new run"), answer
        assert token_seen(scene) > seen
        flag.unlink()
        ended = old.wait()
        assert ended.code == 0, ended
        assert "writeback_stale_attempt" in ended.err, ended
        assert scene.published() == after
        scene.run()
        scene.assert_exact()
        scene.change()
