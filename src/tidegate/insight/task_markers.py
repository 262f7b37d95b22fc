"""Letting a task be done again: its marker is forgotten, where that leaves the target right."""

from __future__ import annotations

from contextlib import suppress

from tidegate.control.task_markers import TaskMarkers
from tidegate.errors import UsageError
from tidegate.insight.markers import forget_marker
from tidegate.model.rules import Mode
from tidegate.model.task import TaskRun
from tidegate.pipeline.context import Context


def forget_task(context: Context, run: TaskRun) -> None:
    """Forget that a run is complete; refuses what doing it again would not leave right."""
    task = run.task
    if task.complete is not None:
        raise UsageError(
            f"task {run} is complete when its complete function says so, not by a marker",
            "take away what that function looks for, then run it",
        )
    if task.target is None:
        context.control_id()
        with context.plane.connect() as control:
            TaskMarkers(context.plane).forget(control, run)
        return
    if task.mode is Mode.APPEND and not task.key:
        raise UsageError(
            f"task {run} appends to {task.target}: done again, its rows would be there twice",
            f"remove them, then: tidegate marker forget {task.target} {run.update_id}",
        )
    if context.is_lake(task.target.connection):
        raise UsageError(
            f"task {run} has published into {task.target}, and a lake's table itself says what is "
            "in it",
            "give the task another name or another parameter",
        )
    with suppress(UsageError):  # it was not complete
        forget_marker(context, task.target, run.update_id)
