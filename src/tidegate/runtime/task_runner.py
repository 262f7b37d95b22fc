"""Running one task as a fenced attempt at a job, in this process or for a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg

from tidegate.control.task_markers import TaskMarkers
from tidegate.control.workers import user_name
from tidegate.errors import StaleAttempt, UsageError
from tidegate.failpoints import reach
from tidegate.model.job import TASK, JobRequest
from tidegate.model.task import Task, TaskRun
from tidegate.pipeline.context import Context
from tidegate.pipeline.task_graph import find_task
from tidegate.pipeline.task_work import TaskWork, is_complete
from tidegate.postgres.connect import Connection, translate
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.claiming import Claimed, claim_table, table_resource
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.working import ClaimedWork


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How a run of a task ended; `already` means that it was complete before."""

    job_id: UUID
    update_id: str
    already: bool = False
    rows: int | None = None
    changed: int | None = None
    seconds: float = 0.0


class TaskRunner:
    """Runs tasks in this process, each as an attempt at a job of its own."""

    def __init__(self, context: Context, heartbeat: Heartbeat) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._actor = f"{user_name()} ({heartbeat.worker.command})"

    def run(self, run: TaskRun) -> TaskReport:
        """Submit, claim and work one task; BusyError names who is at it."""
        context, target = self._context, run.task.target
        context.control_id()  # so that there is a control plane to connect to
        try:
            with self._heartbeat.sessions.borrow() as control:
                claimed = claim_table(
                    context,
                    control,
                    None if target is None else context.destination(target),
                    str(run) if target is None else target,
                    task_request(context, run),
                    self._heartbeat,
                    actor=self._actor,
                )
                return self._work(run, control, claimed)
        except psycopg.Error as error:
            raise translate(error, f"task {run}") from error

    def work(self, run: TaskRun, claimed: Claimed) -> TaskReport:
        """Work a job that was claimed from the queue; after an error it is put back there."""
        try:
            with self._heartbeat.sessions.borrow() as control:
                return self._work(run, control, claimed, retries=True)
        except psycopg.Error as error:
            raise translate(error, f"task {run}") from error

    def _work(
        self, run: TaskRun, control: Connection, claimed: Claimed, *, retries: bool = False
    ) -> TaskReport:
        context, job_id = self._context, claimed.claim.job_id
        target = run.task.target
        destination = None if target is None else context.destination(target)
        started = time.monotonic()
        found: dict[str, Any] = {}

        def work(attempt: LiveAttempt) -> dict[str, Any]:
            found.update(TaskWork(context, run, destination, attempt).work())
            return found

        def ended(session: Connection) -> None:
            TaskMarkers(context.plane).touch(session, run, job_id)
            reach("publish.marked")

        won = ClaimedWork(
            context=context,
            control=control,
            destination=destination,
            claimed=claimed,
            actor=self._actor,
            what=f"task {run}",
            interrupt=lambda: context.spark.interrupt(claimed.claim.attempt_id),
            retries=retries,
            retry_delay_seconds=run.task.retry_delay_seconds,
            ended=ended if destination is None else None,
        ).run(work)
        if not won and not is_complete(context, run, control):
            raise StaleAttempt(
                f"task {run} was taken over by another process, or cancelled",
                "run it again: what is complete is not done again",
            )
        return TaskReport(
            job_id,
            run.update_id,
            already=not won or bool(found.get("already")),
            rows=found.get("rows"),
            changed=found.get("changed"),
            seconds=time.monotonic() - started,
        )


def task_request(context: Context, run: TaskRun) -> JobRequest:
    """The job that runs a task."""
    task = run.task
    attempts = context.settings.worker.max_attempts if task.retries is None else task.retries + 1
    return JobRequest(
        project=task.project,
        kind=TASK,
        name=task.name,
        resource=run.resource if task.target is None else table_resource(context, task.target),
        payload=run.payload,
        max_attempts=attempts,
        priority=task.priority,
        limits=task.resources,
    )


def read_payload(tasks: Mapping[str, Task], name: str, payload: Mapping[str, Any]) -> TaskRun:
    """The run that a job asks for, of the task as it is declared now."""
    task = find_task(tasks, name)
    parameters = payload.get("parameters")
    if not isinstance(parameters, dict):
        raise UsageError(
            f"the job {name} is malformed: its payload holds no parameters",
            "submit it again with: tidegate run NAME --param … --queue",
        )
    run = task.run(task.signature.read(name, parameters))
    run = replace(run, allow_removal=payload.get("allow_removal", False))
    if run.update_id != payload.get("update_id"):
        raise UsageError(
            f"task {name} was declared anew since its job was submitted: {payload.get('target')} "
            f"was its target, {task.target} is; {payload.get('update_id')} was its update_id, "
            f"{run.update_id} is",
            f"submit it again with: tidegate run {name} --param … --queue",
        )
    return run
