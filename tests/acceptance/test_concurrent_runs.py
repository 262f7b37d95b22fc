"""Several runs at once: one works on a table, the others are told who; other tables go on."""

from __future__ import annotations

import psycopg
import pytest

from acceptance.conftest import MakeScene
from acceptance.harness import BUSY, Scene


def assert_one_at_a_time(scene: Scene) -> None:
    """No two attempts at one table were ever running together."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        overlaps = connection.execute(
            "WITH a AS (SELECT j.resource, t.* FROM tidegate_control.job_attempts t"
            " JOIN tidegate_control.jobs j USING (job_id))"
            " SELECT a.attempt_id, b.attempt_id FROM a JOIN a b ON a.resource = b.resource"
            " AND a.attempt_id < b.attempt_id AND tstzrange(a.started_at, a.finished_at)"
            " && tstzrange(b.started_at, b.finished_at)"
        ).fetchall()
    assert overlaps == []


@pytest.mark.parametrize("others", [1, 3])
def test_a_second_run_is_told_who_holds_the_table(make_scene: MakeScene, others: int) -> None:
    scene = make_scene(2)
    holder, flag = scene.start_and_hold("check.done")
    for process in [scene.start() for _ in range(others)]:
        ended = process.wait()
        assert ended.code == BUSY, ended
        assert f"process {holder.pid} on" in ended.err, ended
        assert "raw.orders" in ended.err, ended
    flag.unlink()
    ended = holder.wait()
    assert ended.code == 0, ended
    scene.assert_exact()
    scene.assert_swept()


def waits_for_a_lock(scene: Scene) -> bool:
    with psycopg.connect(scene.control, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        ).fetchone()
    return row is not None and row[0] > 0


def test_nobody_gets_between_the_submission_of_a_job_and_its_claim(make_scene: MakeScene) -> None:
    scene = make_scene(2)
    slow, submitted = scene.start_and_hold("job.submitted")
    second = scene.start()
    second.wait_for(lambda: waits_for_a_lock(scene), "the second to wait for the first's commit")
    submitted.unlink()
    ended = second.wait()
    assert ended.code == BUSY, ended
    assert f"process {slow.pid} on" in ended.err, ended
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


def race(scene: Scene, runs: int) -> None:
    """All start at once, on databases that none has touched before or since a change."""
    processes = [scene.start() for _ in range(runs)]
    ended = [process.wait() for process in processes]
    assert {one.code for one in ended} <= {0, BUSY}, "\n".join(map(str, ended))
    assert any(one.code == 0 for one in ended)
    for one in ended:
        assert one.code == 0 or "process " in one.err, one
    scene.assert_exact()
    assert_one_at_a_time(scene)


@pytest.mark.parametrize("runs", [2, 4])
def test_runs_that_race_from_the_first_moment(make_scene: MakeScene, runs: int) -> None:
    scene = make_scene(2)
    race(scene, runs)
    scene.change()
    race(scene, runs)
    scene.assert_swept()


def test_different_tables_go_on_side_by_side(make_scene: MakeScene) -> None:
    scene = make_scene(2, tables=("orders", "customers"))
    held, flag = scene.start_and_hold("check.done", "orders")
    scene.run("customers")
    assert held.alive
    flag.unlink()
    ended = held.wait()
    assert ended.code == 0, ended
    scene.assert_exact()
    scene.assert_swept()


def test_a_table_is_not_held_back_by_the_load_of_another(make_scene: MakeScene) -> None:
    """What changes while one table is being loaded still reaches the others."""
    scene = make_scene(2, tables=("orders", "customers"))
    held, flag = scene.start_and_hold("check.done", "orders")
    scene.change(table="customers")
    scene.run("customers")
    assert held.alive
    flag.unlink()
    held.wait()
    scene.assert_exact()


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 3])
def test_runs_that_race_again_and_again(make_scene: MakeScene, databases: int) -> None:
    scene = make_scene(databases, tables=("orders", "customers"))
    for _ in range(5):
        processes = [scene.start(name) for name in scene.tables * 3]
        ended = [process.wait() for process in processes]
        assert {one.code for one in ended} <= {0, BUSY}, "\n".join(map(str, ended))
        scene.change()
    for table in scene.tables:
        scene.run(table)
    scene.assert_exact()
    assert_one_at_a_time(scene)
    scene.assert_swept()
