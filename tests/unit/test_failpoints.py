"""Failpoints: named, refused when unknown, and nothing when off."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tidegate
from tidegate.core import failpoints

SOURCE = Path(tidegate.__file__).parent


def run(code: str, failpoint: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from tidegate.core.failpoints import reach\n{code}"],
        env={"TIDEGATE_FAILPOINT": failpoint, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_an_unknown_point_is_refused_and_the_known_ones_are_named() -> None:
    done = run("", "publish.aplied=kill")
    assert done.returncode == 1
    assert "unknown point 'publish.aplied'" in done.stderr
    assert "publish.applied" in done.stderr


def test_a_point_that_is_off_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", None)
    monkeypatch.setattr(failpoints, "_fire", lambda armed: pytest.fail("it fired"))
    for point in failpoints.POINTS:
        failpoints.reach(point)


def test_other_points_than_the_armed_one_are_passed_freely() -> None:
    done = run("[reach('job.claimed') for _ in range(9)]; print('alive')", "stage.done=kill")
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_kill_ends_the_process_at_the_point() -> None:
    done = run("reach('stage.done'); print('alive')", "stage.done=kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_kill_can_be_known_by_a_file(tmp_path: Path) -> None:
    done = run("reach('stage.done')", f"stage.done=kill:{tmp_path / 'killed'}")
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "killed").exists()


def test_a_trace_names_every_point_passed_and_stops_at_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = run("reach('job.claimed'); reach('stage.done'); print('alive')", f"*=trace:{trace}")
    assert done.stdout == "alive\n"
    assert trace.read_text().split() == ["job.claimed", "stage.done"]


def test_the_second_passage_can_be_the_one() -> None:
    done = run(
        "reach('stage.done'); print('once', flush=True); reach('stage.done')", "stage.done@2"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")


def test_raise_raises() -> None:
    done = run("reach('stage.done')", "stage.done=raise")
    assert "FailpointHit: failpoint stage.done" in done.stderr


def test_wait_announces_itself_and_goes_on_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setattr(failpoints, "_armed", ("stage.done", 1, f"wait:{flag}"))
    monkeypatch.setattr(failpoints, "_passages", 0)
    thread = threading.Thread(target=failpoints.reach, args=("stage.done",), daemon=True)
    thread.start()
    thread.join(0.05)
    while not flag.exists():
        thread.join(0.01)
    assert thread.is_alive()
    flag.unlink()
    thread.join(10)
    assert not thread.is_alive()


def test_every_point_is_reached_somewhere_and_none_is_misspelt() -> None:
    used = {
        point
        for file in SOURCE.rglob("*.py")
        if file.name != "failpoints.py"
        for point in re.findall(r'\breach\("([^"]+)"\)', file.read_text(encoding="utf-8"))
    }
    assert used == set(failpoints.POINTS)
