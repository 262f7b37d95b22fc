"""`tidegate run` told to go: Ctrl-C cancels its job, SIGTERM leaves it to whoever comes next."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene


def jobs(scene: Scene) -> list[tuple[object, ...]]:
    with psycopg.connect(scene.control, autocommit=True) as connection:
        return connection.execute(
            "SELECT j.status, j.crash_count, q.claimed_at IS NULL, l.resource IS NOT NULL"
            " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_queue q USING (job_id)"
            " LEFT JOIN tidegate_control.table_locks l USING (job_id) ORDER BY j.submitted_at"
        ).fetchall()


@pytest.mark.parametrize("point", ["stage.done", "publish.applied"])
def test_ctrl_c_cancels_the_job_and_nothing_of_it_is_published(
    make_scene: MakeScene, point: str
) -> None:
    scene = make_scene(2, batch_rows=10_000)
    process, flag = scene.start_and_hold(point)
    told = time.monotonic()
    process.send(signal.SIGINT)
    ended = process.wait()
    assert time.monotonic() - told < 7
    assert ended.code == 130, ended
    assert "interrupted, 1 job cancelled; run again at any time" in ended.err, ended
    oracle.wait_until_left(scene.destination)
    assert jobs(scene) == [("cancelled", 0, True, False)]
    assert oracle.assert_ledger(scene.destination) == 0
    flag.unlink()
    scene.run()
    assert scene.assert_exact() == 1
    scene.assert_swept()


def test_ctrl_c_after_the_commit_leaves_a_job_that_is_done(make_scene: MakeScene) -> None:
    scene = make_scene(3, batch_rows=10_000)
    process, flag = scene.start_and_hold("publish.committed")
    process.send(signal.SIGINT)
    assert process.wait().code == 130
    assert jobs(scene) == [("done", 0, True, False)]
    flag.unlink()
    assert scene.assert_exact() == 1


def test_sigterm_gives_the_job_back_and_the_next_run_takes_it_up(make_scene: MakeScene) -> None:
    scene = make_scene(2, batch_rows=10_000)
    process, flag = scene.start_and_hold("stage.done")
    process.send(signal.SIGTERM)
    ended = process.wait()
    assert ended.code == 1, ended
    assert "told to stop, 1 job given back" in ended.err, ended
    assert jobs(scene) == [("pending", 0, True, True)]
    flag.unlink()
    scene.run()
    assert [status for status, *_ in jobs(scene)] == ["done"]
    assert scene.assert_exact() == 1
    scene.assert_swept()
