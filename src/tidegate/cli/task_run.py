"""`tidegate run` of tasks: their parameters, the graph, and its tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from tidegate.cli.output import print_error, print_json, print_line
from tidegate.cli.task_tree import TreeScreen, step_document
from tidegate.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.model.task import Step
    from tidegate.project import Project
    from tidegate.runtime.heartbeat import Heartbeat
    from tidegate.runtime.submitting import QueueOptions
    from tidegate.runtime.task_graph_run import GraphReport

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

    from tidegate.model.task import SyncRun

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
    from tidegate.model.task import TaskRun

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
    from tidegate.runtime.claiming import open_heartbeat
    from tidegate.runtime.shutdown import Shutdown

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
    from tidegate.cli.following import follow as watch
    from tidegate.cli.translation import translated

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
