"""The tree of a graph: every step where it is required, and how it stands."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console

from tidegate.cli.sync.run_task import TreeScreen, step_document
from tidegate.config.task import Step
from tidegate.core.errors import LoadError, TaskFailed
from tidegate.project import Project
from tidegate.tasks.graph import TaskGraph, build_graph
from tidegate.tasks.graph_runner import StepEnd, StepState
from tidegate.tasks.runner import TaskReport

TOML = '[project]\nname = "shop"\n[connections]\nshop = "postgresql://localhost/shop"\n'
PIPELINES = """
import tidegate as tg

@tg.task
def ground(ctx, n: int): ...

@tg.task(requires=[ground])
def left(ctx, n: int): ...

@tg.task(requires=[left, ground])
def right(ctx, n: int): ...

@tg.task(requires=[left, right])
def top(ctx, n: int): ...
"""


@pytest.fixture
def graph(tmp_path: Path) -> TaskGraph:
    (tmp_path / "tidegate.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
    project = Project.open(tmp_path)
    top = project.task_run("top", {"n": 1})
    return build_graph(project.tasks, [top], lambda run: run.name == "ground")


def step(graph: TaskGraph, name: str) -> Step:
    return next(one for one in graph.order if one.name == name)


def test_each_step_is_shown_below_what_requires_it_and_told_once(graph: TaskGraph) -> None:
    screen = TreeScreen(graph, quiet=False)
    assert screen.lines() == [
        "top(n=1): waiting",
        "  left(n=1): waiting",
        "    ground(n=1): waiting",
        "  right(n=1): waiting",
        "    left(n=1): see above",
        "    ground(n=1): waiting",
    ]
    screen.ended(StepEnd(step(graph, "ground"), StepState.COMPLETE))
    report = TaskReport(uuid4(), "x", rows=1200, changed=3, seconds=1.25)
    screen.ended(StepEnd(step(graph, "left"), StepState.DONE, task=report))
    screen.started(step(graph, "right"))
    lines = screen.lines()
    assert lines[1:4] == [
        "  left(n=1): done, 1,200 rows, 1.2 s",
        "    ground(n=1): complete",
        "  right(n=1): running",
    ]
    failed = TaskFailed("task right(n=1) failed: ValueError: no\nmore of it", "correct it")
    screen.ended(StepEnd(step(graph, "right"), StepState.FAILED, error=failed))
    blocked = LoadError("top(n=1) was not run: it requires right(n=1), which failed")
    screen.ended(StepEnd(step(graph, "top"), StepState.BLOCKED, error=blocked))
    lines = screen.lines()
    assert lines[0] == "top(n=1): requires right(n=1), which failed"
    assert lines[3] == "  right(n=1): failed: task right(n=1) failed: ValueError: no"


def test_a_terminal_gets_the_same_as_a_drawing(graph: TaskGraph) -> None:
    screen = TreeScreen(graph, quiet=False)
    screen.ended(StepEnd(step(graph, "ground"), StepState.COMPLETE))
    out = StringIO()
    Console(file=out, width=80).print(screen._tree())
    drawn = out.getvalue().splitlines()
    assert [line.strip("│├└─ ").rstrip() for line in drawn] == [
        line.strip() for line in screen.lines()
    ]
    assert drawn[1].startswith("├── left(n=1)")


def test_a_step_for_programs_says_what_it_is_and_how_it_ended(graph: TaskGraph) -> None:
    failed = TaskFailed("it broke", "mend it")
    found = step_document(graph, StepEnd(step(graph, "right"), StepState.FAILED, error=failed))
    assert found["update_id"].startswith("shop.right-g1-")
    del found["update_id"]
    assert found == {
        "kind": "task",
        "name": "right",
        "parameters": {"n": 1},
        "status": "failed",
        "requires": ["left(n=1)", "ground(n=1)"],
        "error": "it broke",
        "hint": "mend it",
    }
