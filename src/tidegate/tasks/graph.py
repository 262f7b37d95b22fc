"""What has to run before a task may: a graph of tasks with their parameters, and of syncs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.config.task import Requirement, Step, SyncRun, Task, TaskRun
from tidegate.core.errors import DeclarationError, TidegateError, UsageError
from tidegate.load.sources.resolve import nearest
from tidegate.tasks.registry import Cycle, Graph, build, check_parameters

MOST_STEPS = 100_000
"""a graph with more has most likely no end, such as a day that requires the day before it"""


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """All that some tasks need, each after what it requires; what is complete needs nothing."""

    graph: Graph[Step]
    roots: tuple[Step, ...]
    complete: frozenset[TaskRun]

    @property
    def order(self) -> tuple[Step, ...]:
        return self.graph.order

    @property
    def missing(self) -> tuple[Step, ...]:
        """What is still to be done, in order."""
        return tuple(one for one in self.order if one not in self.complete)

    def requires(self, step: Step) -> tuple[Step, ...]:
        return self.graph.requires[step]


def find_task(tasks: Mapping[str, Task], name: str) -> Task:
    """The task of this name; unknown names get the nearest right one."""
    found = tasks.get(name)
    if found is None:
        raise UsageError(f"there is no task {name!r}", nearest(name, tasks))
    return found


def build_graph(
    tasks: Mapping[str, Task],
    roots: Iterable[Step],
    is_complete: Callable[[TaskRun], bool],
) -> TaskGraph:
    """Ask every task once whether it is complete and, where it is not, what it requires."""
    chosen = tuple(dict.fromkeys(roots))
    asked_for = {one: one for one in chosen}
    complete: set[TaskRun] = set()
    asked = 0

    def required(step: Step) -> Sequence[Step]:
        nonlocal asked
        asked += 1
        if asked > MOST_STEPS:
            raise DeclarationError(
                f"{chosen[0]} requires more than {MOST_STEPS:,} tasks; the last is {step}",
                "see that its requirements come to an end",
            )
        if isinstance(step, SyncRun):
            return ()
        if is_complete(step):
            complete.add(step)
            return ()
        # A run that was asked for is the one that was asked for, whatever else requires it.
        return [asked_for.get(one, one) for one in requirements_of(tasks, step)]

    try:
        graph = build(chosen, required)
    except Cycle as cycle:
        raise DeclarationError(
            f"tasks require each other in a circle: {cycle}",
            "take one of these requirements out",
        ) from None
    return TaskGraph(graph, chosen, frozenset(complete))


def requirements_of(tasks: Mapping[str, Task], run: TaskRun) -> list[Step]:
    """What one run requires, with parameters of its own or with those of the run."""
    return [_step(tasks, run, one) for one in _requirements(run)]


def _requirements(run: TaskRun) -> Sequence[Requirement]:
    requires = run.task.requires
    if not callable(requires):
        return requires
    try:
        return requires(**run.values)
    except TidegateError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"task {run}: what it requires cannot be computed: {type(error).__name__}: {error}",
            "correct the function that it has as requires",
        ) from error


def _step(tasks: Mapping[str, Task], run: TaskRun, requirement: Requirement) -> Step:
    if not requirement.is_task:
        return SyncRun(requirement.name)
    required = tasks[requirement.name]
    values: dict[str, Any] = {
        name: value for name, value in run.values.items() if name in required.signature.names
    }
    try:
        check_parameters(run.task, requirement, required)
        read = required.signature.read(required.name, values | dict(requirement.parameters))
    except UsageError as error:
        raise DeclarationError(f"{run} → {required.name}: {error.message}", error.hint) from None
    return required.run(read)
