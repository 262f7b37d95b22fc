"""The tree of a graph of tasks: each with what it requires below it, and how it stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.cli.output import print_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.tree import Tree

    from tidegate.model.task import Step
    from tidegate.pipeline.task_graph import TaskGraph
    from tidegate.runtime.task_graph_run import StepEnd

_STYLES = {"done": "green", "complete": "dim", "failed": "red", "blocked": "yellow"}


class TreeScreen:
    """What a run of tasks says: a living tree on a terminal, else indented lines at the end."""

    def __init__(self, graph: TaskGraph, *, quiet: bool) -> None:
        self._graph = graph
        self._quiet = quiet
        self._running: set[Step] = set()
        self._ends: dict[Step, StepEnd] = {}
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the tree while the graph runs, and leave it there."""
        if self._quiet:
            yield
            return
        if not sys.stdout.isatty():
            yield
            for line in self.lines():
                print_line(line)
            return
        from rich.live import Live

        with Live(self._tree(), refresh_per_second=4, transient=False) as self._live:
            yield

    def started(self, step: Step) -> None:
        self._running.add(step)
        self._refresh()

    def ended(self, end: StepEnd) -> None:
        self._running.discard(end.step)
        self._ends[end.step] = end
        self._refresh()

    def lines(self) -> list[str]:
        """The tree as plain text."""
        found: list[str] = []
        seen: set[Step] = set()

        def add(step: Step, depth: int) -> None:
            found.append(f"{'  ' * depth}{step}: {self._words(step, step in seen)}")
            if step not in seen:
                seen.add(step)
                for needed in self._graph.requires(step):
                    add(needed, depth + 1)

        for root in self._graph.roots:
            add(root, 0)
        return found

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._tree())

    def _tree(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        seen: set[Step] = set()

        def label(step: Step) -> Text:
            end = self._ends.get(step)
            style = "cyan" if end is None else _STYLES[end.state]
            words = Text(self._words(step, step in seen), style=style)
            return Text.assemble(f"{step}: ", words)

        def add(tree: Tree, step: Step) -> None:
            branch = tree.add(label(step))
            if step not in seen:
                seen.add(step)
                for needed in self._graph.requires(step):
                    add(branch, needed)

        whole = Tree("", hide_root=True)
        for root in self._graph.roots:
            add(whole, root)
        return whole

    def _words(self, step: Step, seen: bool) -> str:
        if seen and self._graph.requires(step):
            return "see above"
        end = self._ends.get(step)
        if end is None:
            return "running" if step in self._running else "waiting"
        return describe_end(end)


def describe_end(end: StepEnd) -> str:
    """How a step ended, in a few words."""
    if end.error is not None and end.state == "blocked":
        return end.error.message.partition(": it ")[2] or end.state.value
    if end.error is not None:
        return f"failed: {end.error.message.splitlines()[0]}"
    if end.task is not None:
        return _describe_task(end)
    if end.syncs is not None:
        return f"done, {end.syncs.rows:,} rows"
    return "complete"


def _describe_task(end: StepEnd) -> str:
    report = end.task
    assert report is not None
    if report.already:
        return "complete, done by another meanwhile"
    rows = "" if report.rows is None else f", {report.rows:,} rows"
    return f"done{rows}, {report.seconds:.1f} s"


def step_document(graph: TaskGraph, end: StepEnd) -> dict[str, Any]:
    """One step for programs."""
    from tidegate.model.task import TaskRun

    step = end.step
    is_task = isinstance(step, TaskRun)
    found: dict[str, Any] = {"kind": "task" if is_task else "sync", "name": step.name}
    if isinstance(step, TaskRun):
        found |= {"parameters": step.parameters, "update_id": step.update_id}
    found |= {"status": end.state, "requires": [str(one) for one in graph.requires(step)]}
    if end.task is not None:
        found |= {
            "job": str(end.task.job_id),
            "already": end.task.already,
            "rows": end.task.rows,
            "changed": end.task.changed,
            "seconds": round(end.task.seconds, 3),
        }
    if end.syncs is not None:
        found |= {"rows": end.syncs.rows}
    if end.error is not None:
        found |= {"error": end.error.message, "hint": end.error.hint}
    return found
