"""What the library logs never reaches the standard output of the script that uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.conftest import MakePlace, Place
from integration.left_behind import ORDERS

# A sync that fails as nobody expected, which is logged.
SCRIPT = """
from dataclasses import replace
import tidegate as tg

{setup}
with tg.open(".") as project:
    broken = replace(project.sync("orders"), refused=RuntimeError("out of luck"))
    print(len(project.run_many([broken]).failed), "failed")
"""
BASIC = "import logging; logging.basicConfig(filename='app.log', format='%(name)s %(message)s')"
STRUCTLOG = """
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()])
"""


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(ORDERS)


def run(place: Place, setup: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(setup=setup)],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("setup", ["", STRUCTLOG], ids=["nothing set up", "structlog set up"])
def test_a_scripts_output_is_its_own_and_warnings_go_to_standard_error(
    place: Place, setup: str
) -> None:
    done = run(place, setup)
    assert done.stdout == "1 failed\n"
    assert "event='run_failed' sync='orders'" in done.stderr
    assert "RuntimeError: out of luck" in done.stderr


def test_an_application_that_sets_up_logging_gets_the_events(place: Place) -> None:
    done = run(place, BASIC)
    assert (done.stdout, done.stderr) == ("1 failed\n", "")
    logged = (place.folder / "app.log").read_text()
    assert logged.startswith("tidegate event='run_failed' sync='orders'\n")
    assert "RuntimeError: out of luck" in logged


def test_a_command_logs_one_line_with_time_and_level_to_standard_error(place: Place) -> None:
    done = run(place, "from tidegate.cli.logging import configure; configure(); configure()")
    assert done.stdout == "1 failed\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("timestamp='20")
    assert "Z' level='error' event='run_failed' sync='orders'" in line
