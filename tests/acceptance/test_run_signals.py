"""`tidegate run`, what it says while it runs, and when told to go.

Ctrl-C cancels its job, SIGTERM leaves it to whoever comes next.
"""

from __future__ import annotations

import json
import signal
import time

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene


def jobs(scene: Scene) -> list[tuple[object, ...]]:
    return oracle.rows(
        scene.control,
        "SELECT j.status, j.crash_count, q.claimed_at IS NULL, l.resource IS NOT NULL"
        " FROM tidegate_control.jobs j LEFT JOIN tidegate_control.job_queue q USING (job_id)"
        " LEFT JOIN tidegate_control.table_locks l USING (job_id) ORDER BY j.submitted_at",
    )


def test_ctrl_c_cancels_the_job_and_nothing_of_it_is_published_unless_it_was(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(3, batch_rows=10_000)
    for number, point in enumerate(("stage.done", "publish.applied"), 1):
        process, flag = scene.start_and_hold(point)
        told = time.monotonic()
        process.send(signal.SIGINT)
        ended = process.wait()
        assert time.monotonic() - told < 7
        assert ended.code == 130, ended
        assert "interrupted, 1 job cancelled; run again at any time" in ended.err, ended
        oracle.wait_until_left(scene.destination)
        assert jobs(scene) == [("cancelled", 0, True, False)] * number
        assert oracle.assert_ledger(scene.destination) == 0
        flag.unlink()
    process, _ = scene.start_and_hold("publish.committed")
    process.send(signal.SIGINT)
    assert process.wait().code == 130
    assert jobs(scene)[-1] == ("done", 0, True, False)
    assert scene.assert_exact() == 1
    scene.assert_swept()


def test_sigterm_gives_the_job_back_and_the_next_run_takes_it_up(make_scene: MakeScene) -> None:
    scene = make_scene(2, batch_rows=10_000)
    process, _ = scene.start_and_hold("stage.done")
    process.send(signal.SIGTERM)
    ended = process.wait()
    assert ended.code == 1, ended
    assert "told to stop, 1 job given back" in ended.err, ended
    assert jobs(scene) == [("pending", 0, True, True)]
    scene.run()
    assert [status for status, *_ in jobs(scene)] == ["done"]
    assert scene.assert_exact() == 1
    scene.assert_swept()


def shown(scene: Scene) -> tuple[dict[str, object], str]:
    """The progress of the newest job in the database, and the line that `job show` has of it."""
    query = (
        "SELECT job_id::text, progress FROM tidegate_control.jobs"
        " ORDER BY submitted_at DESC LIMIT 1"
    )
    ((job_id, progress),) = oracle.rows(scene.control, query)
    printed = scene.command("job", "show", job_id)
    assert printed.code == 0, printed
    (line,) = [one for one in printed.out.splitlines() if one.strip().startswith("progress:")]
    return progress, line


def test_a_job_says_which_step_it_is_at_and_what_it_has_loaded(make_scene: MakeScene) -> None:
    scene = make_scene(2, batch_rows=10_000)
    for point, step in (("stage.done", "staging"), ("check.done", "publishing")):
        process, flag = scene.start_and_hold(point)
        progress, line = shown(scene)
        assert (progress["step"], progress["loads"], progress["loaded"]) == (step, 0, 0), progress
        rows = progress["rows"]
        assert isinstance(rows, int)
        assert rows > 0
        assert f"step {step}" in line, line
        assert f"rows {rows}" in line, line
        flag.unlink()
        ended = process.wait()
        assert ended.code == 0, ended
        assert json.dumps(rows) in ended.out.replace(",", ""), ended
        scene.change()
