"""What a job that runs says of itself, to whoever looks."""

from __future__ import annotations

import json

import psycopg
import pytest

import forked
from acceptance.conftest import MakeScene
from acceptance.harness import Scene


def shown(scene: Scene) -> tuple[dict[str, object], str]:
    """The progress of the newest job in the database, and all that `job show` prints of it."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        row = connection.execute(
            "SELECT job_id::text, progress FROM tidegate_control.jobs"
            " ORDER BY submitted_at DESC LIMIT 1"
        ).fetchone()
    assert row is not None
    printed = forked.run("job", "show", row[0], "-C", str(scene.folder))
    assert printed.returncode == 0, printed
    return row[1], printed.stdout


@pytest.mark.parametrize(
    ("point", "step"), [("stage.done", "staging"), ("check.done", "publishing")]
)
def test_a_job_says_which_step_it_is_at_and_what_it_has_loaded(
    make_scene: MakeScene, point: str, step: str
) -> None:
    scene = make_scene(2, batch_rows=10_000)
    scene.run()
    scene.change()
    process, flag = scene.start_and_hold(point)
    progress, printed = shown(scene)
    assert (progress["step"], progress["loads"], progress["loaded"]) == (step, 0, 0), progress
    rows = progress["rows"]
    assert isinstance(rows, int)
    assert rows > 0
    (line,) = [one for one in printed.splitlines() if one.strip().startswith("progress:")]
    assert f"step {step}" in line, printed
    assert f"rows {rows}" in line, printed
    flag.unlink()
    ended = process.wait()
    assert ended.code == 0, ended
    assert json.dumps(rows) in ended.out.replace(",", ""), ended
    scene.assert_exact()
