"""Jobs of tasks that were killed after their work was in: taken up once more, to be closed."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.control.dead import DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.errors import TidegateError
from tidegate.log import log
from tidegate.model.job import Holder, JobStatus
from tidegate.model.task import TaskRun
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.runtime.claiming import table_resource
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.task_runner import TaskRunner


def close_left(context: Context, heartbeat: Heartbeat, complete: Iterable[TaskRun]) -> int:
    """Close the jobs of complete tasks that nobody works on; returns how many there were.

    The marker of a side effect and the end of its job are one commit, so only those with a target
    or with a function of their own can be left like this.
    """
    resources: dict[str, dict[str, TaskRun]] = {}
    for run in complete:
        if run.task.target is not None or run.task.complete is not None:
            resources.setdefault(_resource(context, run, resources), {})[run.update_id] = run
    if not resources:
        return 0
    closed = 0
    with context.plane.connect() as control:
        for resource, runs in resources.items():
            holder = Jobs(context.plane).holder(control, resource)
            if holder is None or _is_live(context, control, holder, resource):
                continue
            found = runs.get(str(holder.payload.get("update_id")))
            if found is not None:
                closed += _close(context, heartbeat, found)
    return closed


def _resource(context: Context, run: TaskRun, known: dict[str, dict[str, TaskRun]]) -> str:
    """What its job locks; the destination is asked once for all days of one table."""
    target = run.task.target
    if target is None:
        return run.resource
    for resource, runs in known.items():
        if next(iter(runs.values())).task.target == target:
            return resource
    return table_resource(context, target)


def _close(context: Context, heartbeat: Heartbeat, run: TaskRun) -> bool:
    try:
        TaskRunner(context, heartbeat).run(run)
    except TidegateError as error:
        # The task is complete all the same; a sweeper closes the job.
        log.warning("task_job_not_closed", task=str(run), error=error.message)
        return False
    return True


def _is_live(context: Context, control: Connection, holder: Holder, resource: str) -> bool:
    dead = {one.attempt_id for one in DeadAttempts(context.plane).list(control, resource=resource)}
    return holder.status is JobStatus.RUNNING and holder.attempt_id not in dead
