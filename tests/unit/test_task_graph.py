"""The graph of tasks: its order, and its tree as it is shown."""

from __future__ import annotations

import itertools
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tidegate.cli.sync.run_task import TreeScreen, step_document
from tidegate.config.task import Step
from tidegate.core.errors import LoadError, TaskFailed
from tidegate.project import Project
from tidegate.tasks.graph import TaskGraph, build_graph
from tidegate.tasks.graph_runner import StepEnd, StepState
from tidegate.tasks.registry import Cycle, build
from tidegate.tasks.runner import TaskReport

# Edges lead from a number to lower ones, so that there is no cycle.
ACYCLIC = st.integers(1, 25).flatmap(
    lambda size: st.fixed_dictionaries(
        {
            node: st.lists(st.integers(0, max(0, node - 1)), max_size=4).map(
                lambda found, node=node: [one for one in found if one < node]
            )
            for node in range(size)
        }
    )
)


@given(ACYCLIC)
def test_everything_comes_once_and_after_what_it_requires(edges: dict[int, list[int]]) -> None:
    graph = build(edges, edges.__getitem__)

    assert sorted(graph.order) == sorted(edges)
    place = {node: number for number, node in enumerate(graph.order)}
    assert all(place[one] < place[node] for node in edges for one in edges[node])


@given(ACYCLIC, st.data())
def test_an_edge_back_is_found_and_its_path_told(
    edges: dict[int, list[int]], data: st.DataObject
) -> None:
    high = data.draw(st.sampled_from(sorted(edges)))
    reachable = build([high], edges.__getitem__).order
    low = data.draw(st.sampled_from(reachable))
    looped = {**edges, low: [*edges[low], high]}

    with pytest.raises(Cycle) as found:
        build([high], looped.__getitem__)

    path = found.value.path
    assert path[0] == path[-1]
    assert all(there in looped[here] for here, there in itertools.pairwise(path))


def test_a_chain_may_be_longer_than_the_stack_of_python() -> None:
    graph = build([20_000], lambda node: [node - 1] if node else [])
    assert graph.order == tuple(range(20_001))


def test_only_what_the_roots_need_is_asked_for_and_each_once() -> None:
    edges = {"a": [], "b": ["a"], "c": ["a", "b"], "elsewhere": ["a"]}
    asked: list[str] = []

    def requires(node: str) -> list[str]:
        asked.append(node)
        return edges[node]

    graph = build(["c", "b"], requires)

    assert graph.order == ("a", "b", "c")
    assert sorted(asked) == ["a", "b", "c"]


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
