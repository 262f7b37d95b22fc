"""A scheduler keeps its state file, and tells people of failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.conftest import MakePlace, Place
from integration.receiver import receiving
from integration.test_notifier import end
from integration.test_state_keeper import forget_everything, queue, queued, said
from tidegate.model.job import JobStatus
from tidegate.runtime.state_keeper import check_file


def scheduling(place: Place) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate", "scheduler"],
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_scheduler_that_is_told_to_end_leaves_its_state_and_takes_it_up_again(
    make_place: MakePlace, number: signal.Signals
) -> None:
    place = make_place(databases=3, scheduler={"state_path": "kept/state.json"})
    path = place.folder / "kept" / "state.json"
    queue(place, "orders", "stock")
    first = scheduling(place)
    assert "sees to" in said(first)
    first.send_signal(number)
    assert first.wait(30) == 0
    assert check_file(path).project == "shop"
    forget_everything(place)
    second = scheduling(place)
    assert "sees to" in said(second)
    assert queued(place.control) == ["orders", "stock"]
    second.send_signal(number)
    assert second.wait(30) == 0


def test_a_scheduler_does_not_start_over_a_damaged_file(make_place: MakePlace) -> None:
    place = make_place(databases=3, scheduler={"state_path": "state.json"})
    path = Path(place.folder / "state.json")
    path.write_bytes(b"damaged")
    process = scheduling(place)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "state.json is no state file" in told
    assert "kept as it is" in told
    assert path.read_bytes() == b"damaged"


def test_a_scheduler_tells_people(make_place: MakePlace) -> None:
    with receiving() as receiver:
        place = make_place(databases=3, notify={"webhook": receiver.url})
        end(place, JobStatus.FAILED)
        process = scheduling(place)
        assert receiver.arrived.acquire(timeout=30)
        process.terminate()
        assert process.wait(30) == 0
        assert receiver.texts[0].startswith("shop: orders failed")
