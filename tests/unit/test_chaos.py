"""`make chaos` leaves no test out, goes on where it stopped, and adds up what was tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import chaos
from tried import KINDS

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, time
import pytest
from chaos_seeds import chosen, seeds
from tried import count

def note(name):
    with open("ran.txt", "a") as file:
        file.write(name + " ")

@pytest.mark.chaos
@pytest.mark.parametrize("seed", seeds([1, 2]))
def test_random(seed):
    note("random")
    count(kills=chosen(seed), rows_compared=1000)
    if os.path.exists("late"):
        time.time = lambda: 1e11

@pytest.mark.chaos
def test_picky():
    note("picky")
    if os.path.exists("interrupt"):
        os.remove("interrupt")
        os.kill(os.getpid(), signal.SIGTERM)
    assert not os.path.exists("broken"), "it is broken"

@pytest.mark.chaos
@pytest.mark.skip
def test_skipped():
    pass

def test_for_every_day():
    raise AssertionError
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with a few tests of its own."""
    (tmp_path / "tests" / "acceptance").mkdir(parents=True)
    (tmp_path / "tests" / "acceptance" / "test_lake_tiny.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = chaos\naddopts = -q -p xdist.plugin\n"
    )
    (tmp_path / ".gitignore").write_text(".chaos\n*.txt\nbroken\ninterrupt\nlate\n__pycache__\n")
    commit(tmp_path, "init", "-q")
    return tmp_path


def commit(checkout: Path, *first: str) -> None:
    person = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    steps = [[*first], ["add", "."], [*person, "commit", "-q", "--allow-empty", "-m", "a"]]
    for words in steps:
        if words:
            subprocess.run(["git", *words], cwd=checkout, check=True)


def run(checkout: Path, *options: str, workers: int = 0) -> tuple[int, str]:
    """How the runner ended, and what it said."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "TIDEGATE_"))
    }
    command = [sys.executable, str(ROOT / "tests" / "chaos.py"), "--root", str(checkout)]
    command += ["--part", "lake", "--workers", str(workers), *options]
    # Plugins of the environment take a second to load.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def result(checkout: Path) -> dict[str, Any]:
    (found,) = json.loads((checkout / ".chaos" / "summary.json").read_text())
    return dict(found)


def numbers(checkout: Path) -> tuple[int, ...]:
    found = result(checkout)
    return tuple(found[name] for name in ("tests", "passed", "failed", "left"))


def runs(checkout: Path) -> Counter[str]:
    """How often each test was run."""
    return Counter((checkout / "ran.txt").read_text().split())


def test_every_chaos_test_is_in_exactly_one_part() -> None:
    marked = {
        file
        for file in (ROOT / "tests").rglob("*.py")
        if "mark.chaos" in file.read_text() and "unit" not in file.parts and file.stem != "chaos"
    }
    by_part = chaos.chaos_files(ROOT)
    assert sorted(marked) == sorted(file for files in by_part.values() for file in files)
    assert [file for file in marked if len(chaos.parts_of(file.stem)) > 1] == []
    assert [part for part, files in by_part.items() if not files] == []


def test_what_has_passed_is_not_run_again_until_there_is_another_commit(checkout: Path) -> None:
    (checkout / "broken").touch()
    code, said = run(checkout)
    assert code == 1, said
    assert numbers(checkout) == (4, 2, 1, 1)
    assert "it is broken" in (checkout / ".chaos" / "lake-failures.txt").read_text()
    (checkout / "broken").unlink()
    code, said = run(checkout)
    assert code == 0, said
    assert numbers(checkout) == (4, 3, 0, 1)
    assert runs(checkout) == {"random": 2, "picky": 2}
    commit(checkout)
    run(checkout, "--seed", "5")
    assert runs(checkout) == {"random": 3, "picky": 3}
    assert numbers(checkout) == (3, 2, 0, 1)
    assert result(checkout)["kills"] == 5
    assert not (checkout / ".chaos" / "lake-failures.txt").exists()


def test_no_test_starts_after_the_budget(checkout: Path) -> None:
    code, said = run(checkout, "--minutes", "0")
    assert (code, (checkout / ".chaos" / "lake.json").exists()) == (0, False), said
    assert "lake: not begun" in said
    (checkout / "late").touch()
    code, said = run(checkout, "--minutes", "5")
    assert code == 0, said
    assert numbers(checkout) == (4, 1, 0, 3)
    assert "3 left: run it again to go on" in said


def test_told_to_stop_it_keeps_what_has_passed(checkout: Path) -> None:
    (checkout / "interrupt").touch()
    code, said = run(checkout)
    assert code == chaos.INTERRUPTED, said
    assert numbers(checkout) == (4, 2, 0, 2)
    assert "2 left: run it again to go on" in said


def test_reports_of_several_workers_come_together(checkout: Path) -> None:
    code, said = run(checkout, workers=2)
    assert code == 0, said
    found = result(checkout)
    assert numbers(checkout) == (4, 3, 0, 1)
    assert [found[kind] for kind in KINDS] == [3, 0, 0, 2, 2000, 0]


def test_the_table_replaces_the_one_on_the_page(tmp_path: Path) -> None:
    state = {
        "commit": "0123456789abcdef+12345678",
        "date": "2026-05-01",
        "seconds": 90.0,
        "results": {
            "a": {"seed": None, "outcome": "passed", "kills": 1500},
            "b": {"seed": None, "outcome": "failed", "differences": 2},
            "c": {"seed": None},
        },
    }
    (tmp_path / ".chaos").mkdir()
    (tmp_path / ".chaos" / "lake.json").write_text(json.dumps(state))
    page = tmp_path / "docs" / "concepts" / "tried.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# Before\n{chaos.BEGIN}\nold\n{chaos.END}\nAfter\n")
    chaos.write_page(page, chaos.table(chaos.summary(tmp_path / ".chaos")))
    before, _, rest = page.read_text().partition(f"{chaos.BEGIN}\n")
    table, _, after = rest.partition(f"{chaos.END}\n")
    assert (before, after) == ("# Before\n", "After\n")
    expected = "lake | 3 | 1 | 1 | 1 | 1,500 | 0 | 0 | 0 | 0 | 2 | 1.5 | 0123456789+12345678"
    assert table.splitlines()[2:] == [f"| {expected} | 2026-05-01 |"]
