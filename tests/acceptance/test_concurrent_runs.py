"""Several runs at once: one works on a table, the others are told who; other tables go on."""

from __future__ import annotations

import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import BUSY, Scene
from acceptance.oracle import rows
from acceptance.processes import Ended


def assert_one_at_a_time(scene: Scene) -> None:
    """No two attempts at one table were ever running together."""
    overlaps = (
        "WITH a AS (SELECT j.resource, t.* FROM tidegate_control.job_attempts t"
        " JOIN tidegate_control.jobs j USING (job_id))"
        " SELECT a.attempt_id, b.attempt_id FROM a JOIN a b ON a.resource = b.resource"
        " AND a.attempt_id < b.attempt_id AND tstzrange(a.started_at, a.finished_at)"
        " && tstzrange(b.started_at, b.finished_at)"
    )
    assert rows(scene.control, overlaps) == []


def assert_told(ended: Ended, holder: int) -> None:
    assert ended.code == BUSY, ended
    assert f"process {holder} on" in ended.err, ended
    assert "raw.orders" in ended.err, ended


def test_a_second_run_is_told_who_holds_the_table_and_others_go_on(make_scene: MakeScene) -> None:
    scene = make_scene(2, tables=("orders", "customers"))
    holder, flag = scene.start_and_hold("check.done")
    other = scene.start()
    assert_told(scene.command("run", "orders"), holder.pid)
    assert_told(other.wait(), holder.pid)
    # What changes while one table is being loaded still reaches the others.
    scene.change(table="customers")
    scene.run("customers")
    assert holder.alive
    flag.unlink()
    ended = holder.wait()
    assert ended.code == 0, ended
    scene.assert_swept()


def waits_for_a_lock(scene: Scene) -> bool:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    )
    return bool(rows(scene.control, query))


def test_nobody_gets_between_the_submission_of_a_job_and_its_claim(make_scene: MakeScene) -> None:
    scene = make_scene(2)
    slow, submitted = scene.start_and_hold("job.submitted")
    second = scene.start()
    second.wait_for(lambda: waits_for_a_lock(scene), "the second to wait for the first's commit")
    submitted.unlink()
    assert_told(second.wait(), slow.pid)
    ended = slow.wait()
    assert ended.code == 0, ended
    scene.assert_exact()


@pytest.mark.chaos
def test_one_that_is_stopped_between_submission_and_claim_holds_nobody_up(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(2)
    stopped = scene.start(failpoint="job.submitted=stop")
    second = scene.start()
    second.wait_for(lambda: waits_for_a_lock(scene), "the second to wait for the first's commit")
    ended = second.wait()
    assert ended.code == 0, ended
    stopped.resume()
    assert stopped.wait().code in (0, 1)
    scene.assert_exact()


@pytest.mark.parametrize("runs", [3, pytest.param(6, marks=pytest.mark.chaos)])
def test_runs_that_race_from_the_first_moment(make_scene: MakeScene, runs: int) -> None:
    """All start at once, on databases that none has touched before or since a change."""
    scene = make_scene(2)
    for _ in range(2):
        processes = [scene.start() for _ in range(runs)]
        ended = [process.wait() for process in processes]
        assert {one.code for one in ended} <= {0, BUSY}, "\n".join(map(str, ended))
        assert any(one.code == 0 for one in ended)
        for one in ended:
            assert one.code == 0 or "process " in one.err, one
        scene.assert_exact()
        assert_one_at_a_time(scene)
        scene.change()
    scene.run()
    scene.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 3])
def test_runs_that_race_again_and_again(make_scene: MakeScene, databases: int) -> None:
    scene = make_scene(databases, tables=("orders", "customers"))
    for _ in range(5):
        processes = [scene.start(name) for name in scene.tables * 3]
        ended = [process.wait() for process in processes]
        assert {one.code for one in ended} <= {0, BUSY}, "\n".join(map(str, ended))
        scene.change()
    scene.run(*scene.tables)
    scene.assert_exact()
    assert_one_at_a_time(scene)
    scene.assert_swept()
