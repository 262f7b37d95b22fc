"""Tidegate run of tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.output import print_error, print_json, print_line
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from rich.live import Live
    from rich.tree import Tree

    from tidegate.config.task import Step
    from tidegate.jobs.heartbeat import Heartbeat
    from tidegate.load.submit import QueueOptions
    from tidegate.project import Project
    from tidegate.tasks.graph import TaskGraph
    from tidegate.tasks.graph_runner import GraphReport, StepEnd

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
    from tidegate.config.task import TaskRun

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


Leave = Callable[["Project", "Heartbeat", str], int]


def read_parameters(given: Sequence[str]) -> dict[str, str]:
    """What `--param NAME=VALUE` said, each name once."""
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"--param {text!r} has no value", "write --param NAME=VALUE")
        if name.strip() in found:
            raise UsageError(f"--param {name.strip()} was given twice", "give it once")
        found[name.strip()] = value
    return found


def choose_steps(
    opened: Project,
    names: Sequence[str],
    parameters: dict[str, str],
    *,
    allow_removal: bool = False,
) -> list[Step]:
    """The tasks that were named, with these parameters, and syncs beside them."""
    from dataclasses import replace

    from tidegate.config.task import SyncRun

    tasks = opened.tasks
    found: list[Step] = []
    for name in dict.fromkeys(names):
        if name in tasks:
            run = tasks[name].run(tasks[name].signature.parse(name, parameters))
            found.append(replace(run, allow_removal=allow_removal))
        else:
            opened.expand([name])
            found.append(SyncRun(name, allow_removal))
    return found


def forget_steps(opened: Project, steps: Sequence[Step]) -> None:
    """Let the named tasks be done again; what they require stays as it is."""
    from tidegate.config.task import TaskRun

    for step in steps:
        if isinstance(step, TaskRun):
            opened.forget_task(step)


def run_steps(
    opened: Project,
    steps: Sequence[Step],
    *,
    concurrency: int | None,
    as_json: bool,
    leave: Leave,
    patience_seconds: float,
    command: str = "tidegate run",
) -> None:
    """Run a graph in this process, show its tree, and end with its exit code."""
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.jobs.shutdown import Shutdown

    started = time.monotonic()
    graph = opened.task_graph(steps)
    screen = TreeScreen(graph, quiet=as_json)
    with (
        open_heartbeat(opened.context, command) as heartbeat,
        Shutdown(partial(leave, opened, heartbeat), patience_seconds=patience_seconds),
        screen.shown(),
    ):
        report = opened.run_graph(
            graph,
            concurrency=concurrency,
            started=screen.started,
            ended=screen.ended,
            heartbeat=heartbeat,
        )
    if as_json:
        print_json([step_document(graph, end) for end in report.ends])
    else:
        for end in report.failed:
            assert end.error is not None
            error = TidegateError(f"{end.step}: {end.error.message}", end.error.hint)
            print_error(error, as_json=False)
        print_line(_total(report, time.monotonic() - started))
    opened.close()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def queue_steps(
    opened: Project, steps: Sequence[Step], order: QueueOptions, *, follow: bool, as_json: bool
) -> None:
    """Submit a graph for workers, and say what to type next."""
    from tidegate.cli.job.screen import follow as watch
    from tidegate.cli.output import translated

    with translated("queueing"):
        queued = opened.submit_graph(steps, order)
    if as_json:
        print_json(
            [
                {"step": str(one.step), "jobs": list(one.job_ids), "created": one.created}
                for one in queued
            ]
        )
    else:
        for one in queued:
            word = "queued as" if one.created else "not queued again: it is"
            print_line(f"{one.step}: {word} job {', '.join(map(str, one.job_ids))}")
        if not queued:
            print_line("nothing was queued: all of it is complete")
        elif not follow:
            print_line(f"watch with: tidegate job show {queued[-1].job_ids[0]} --follow")
    ids = [job_id for one in queued for job_id in one.job_ids]
    code = watch(opened.context, ids, quiet=as_json) if follow and ids else 0
    opened.close()
    if code:
        raise typer.Exit(code)


def _total(report: GraphReport, seconds: float) -> str:
    """The last line: how many of each there were."""
    states = [end.state for end in report.ends]
    words = {
        "done": "done",
        "complete": "complete before",
        "failed": "failed",
        "blocked": "not run",
    }
    counted = [
        f"{states.count(state)} {word}"  # type: ignore[arg-type]
        for state, word in words.items()
        if state in states or state == "done"
    ]
    return f"{', '.join(counted)}; {seconds:.1f} s"
