"""What a tick of a schedule means to a task: which of its parameters gets it."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tidegate.errors import DeclarationError
from tidegate.model.parameter import Parameter
from tidegate.model.task import Task, TaskRun

_TIMES = ("date", "time")


def ticked_parameter(task: Task) -> Parameter | None:
    """The parameter that gets the tick; None where the task runs the same each time."""
    if task.schedule_parameter is not None:
        found = {one.name: one for one in task.signature.parameters}[task.schedule_parameter]
        if found.type.name not in _TIMES:
            raise DeclarationError(
                f"task {task.name}: a tick is no {found.type.name}, and its schedule_parameter is "
                f"{found.describe()}",
                "choose a parameter of type date or datetime",
            )
        return found
    times = [one for one in task.signature.parameters if one.type.name in _TIMES]
    return times[0] if len(times) == 1 else None


def check_schedulable(task: Task) -> None:
    """Refuse a schedule for a task whose other parameters nobody gives."""
    if task.schedule is None:
        return
    ticked = ticked_parameter(task)
    for one in task.signature.parameters:
        if one.required and one != ticked:
            raise DeclarationError(
                f"task {task.name} has a schedule, and nobody gives it {one.describe()}",
                "give it a default, or say which parameter gets the tick: schedule_parameter=…",
            )


def run_at(task: Task, tick: datetime) -> TaskRun:
    """The run that a tick asks for: a date gets the day that it is in the schedule's time zone."""
    ticked = ticked_parameter(task)
    given = {}
    if ticked is not None:
        local = tick.astimezone(ZoneInfo(task.timezone))
        given[ticked.name] = local.date() if ticked.type.name == "date" else tick.astimezone(UTC)
    return task.run(task.signature.read(task.name, given))
