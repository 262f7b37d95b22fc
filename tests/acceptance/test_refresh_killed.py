"""A full refresh that is killed halfway: the next run finishes it, whoever starts it."""

from __future__ import annotations

import signal

import psycopg
import pytest

from acceptance.conftest import MakeScene

MODES: dict[str, dict[str, object]] = {
    "merge": {},
    "append": {"mode": "append"},
    "versions": {"mode": "append", "key": ["region", "id"]},
    "delete_insert": {"mode": "delete_insert"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["batch.planned", "publish.moved"])
def test_a_plain_run_finishes_a_killed_full_refresh(
    make_scene: MakeScene, mode: str, point: str
) -> None:
    scene = make_scene(2, sync=MODES[mode])
    scene.run()
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("DELETE FROM public.orders WHERE id IN (1, 2, 3)")
    refresh = scene.start(failpoint=f"{point}@1=kill", options=("--full-refresh",)).wait()
    assert refresh.code == -signal.SIGKILL, refresh
    ended = scene.run()
    scene.assert_exact()
    assert "finishes the full refresh that was begun" in ended.out, ended
    assert "found nothing new" in scene.run().out
    scene.assert_swept()


def test_a_full_refresh_that_is_killed_after_its_commit_is_finished(make_scene: MakeScene) -> None:
    scene = make_scene(2, sync=MODES["append"])
    scene.run()
    refresh = scene.start(failpoint="publish.committed@1=kill", options=("--full-refresh",)).wait()
    assert refresh.code == -signal.SIGKILL, refresh
    ended = scene.run()
    assert "full refresh" not in ended.out, ended
    scene.assert_exact()
    scene.assert_swept()
