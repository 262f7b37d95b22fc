"""What `plan` says of tasks: told from their declarations alone."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.model.plan import TaskPlan
from tidegate.model.task import Requirement, Task
from tidegate.pipeline.tasks import static_requirements


def plan_tasks(tasks: Iterable[Task]) -> tuple[TaskPlan, ...]:
    """Each task, in the order of the file; what could never run was refused when it was read."""
    return tuple(_plan(task) for task in tasks)


def _plan(task: Task) -> TaskPlan:
    return TaskPlan(
        task=task.name,
        parameters=tuple(one.describe() for one in task.signature.parameters),
        target=None if task.target is None else str(task.target),
        mode=None if task.target is None else task.mode.value,
        requires=tuple(_name(one) for one in static_requirements(task)),
        requires_computed=callable(task.requires),
        complete=_complete(task),
        schedule=None if task.schedule is None else f"{task.schedule} ({task.timezone})",
    )


def _name(requirement: Requirement) -> str:
    if not requirement.is_task:
        return f"sync {requirement.name}"
    given = ", ".join(f"{name}={value}" for name, value in requirement.parameters.items())
    return f"{requirement.name}({given})" if given else requirement.name


def _complete(task: Task) -> str:
    if task.luigi is not None:
        return "Luigi's marker beside its rows"
    if task.target is not None:
        return "a marker beside its rows"
    return "its complete function" if task.complete else "a marker in the control database"
