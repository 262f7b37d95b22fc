"""Run one task as a job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidegate.config.sync import Mode, RemovalLimit, Rules
from tidegate.config.task import Task, TaskRun
from tidegate.core.errors import (
    DeclarationError,
    StaleAttempt,
    TaskFailed,
    TidegateError,
    UsageError,
    words,
)
from tidegate.core.failpoints import reach
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import Claimed, claim_table, table_resource
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import TASK, JobRequest
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.engine import Attempt
from tidegate.load.sources.dataframe import PublishRequest
from tidegate.load.target import Target
from tidegate.postgres.connection import Connection, translate
from tidegate.spark.user_code import importable, user_code
from tidegate.tasks.context import TaskContext
from tidegate.tasks.graph import find_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TaskMarkers:
    """One row for each set of parameters that a side effect is done for."""

    plane: ControlDatabase

    def exists(self, connection: Connection, run: TaskRun) -> bool:
        row = connection.execute(
            self.plane.statement("tasks/task_markers", "task_marker_exists"), _identity(run)
        ).fetchone()
        return bool(row and row[0])

    def touch(self, connection: Connection, run: TaskRun, job_id: UUID) -> bool:
        """Record it inside the caller's transaction; False when it was recorded before."""
        parameters = {"name": run.name, "parameters": Jsonb(run.parameters), "job_id": job_id}
        done = connection.execute(
            self.plane.statement("tasks/task_markers", "touch_task_marker"),
            _identity(run) | parameters,
        )
        return done.rowcount == 1

    def forget(self, connection: Connection, run: TaskRun) -> bool:
        """Let it be done again; False when it was not recorded."""
        done = connection.execute(
            self.plane.statement("tasks/task_markers", "forget_task_marker"), _identity(run)
        )
        return done.rowcount == 1


def _identity(run: TaskRun) -> dict[str, object]:
    return {"project": run.task.project, "update_id": run.update_id}


def is_complete(context: Context, run: TaskRun, control: Connection) -> bool:
    """Whether a task is done, told without reading its data."""
    task = run.task
    if task.target is not None:
        return context.destination(task.target).exists(run.update_id)
    if task.complete is None:
        return TaskMarkers(context.plane).exists(control, run)
    with TaskContext(context, run) as ctx, importable(user_code(context.settings)):
        try:
            answer = task.complete(ctx, **run.values)
        except TidegateError:
            raise
        except Exception as error:
            raise _failed(run, error, "complete of ") from error
    if not isinstance(answer, bool):
        raise DeclarationError(
            f"task {run}: complete returned {type(answer).__name__}, not True or False",
            "return a bool",
        )
    return answer


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of an attempt; `destination` is None for a side effect."""

    context: Context
    run: TaskRun
    destination: Target | None
    attempt: Attempt

    def work(self) -> dict[str, Any]:
        """What is kept of it in the history."""
        context, run, attempt = self.context, self.run, self.attempt
        with TaskContext(
            context, run, attempt_id=attempt.fence.attempt_id, report=attempt.report
        ) as ctx:
            if self.destination is None:
                return self._effect(ctx)
            if self.destination.exists(run.update_id):
                # An attempt before this one was killed after its commit.
                return {"update_id": run.update_id, "already": True, "rows": 0, "changed": 0}
            return self._publish(self._call(ctx), self.destination)

    def _effect(self, ctx: TaskContext) -> dict[str, Any]:
        if self._is_done():
            # Another did it after the graph was built, or was killed before it could say so.
            return {"update_id": self.run.update_id, "already": True}
        self._call(ctx)
        self.attempt.check_alive()
        if self.run.task.complete is not None and not self._is_done():
            raise TaskFailed(
                f"task {self.run} ran, but its complete function still says that it is not done",
                "see that what it looks for is what the task makes",
            )
        return {"update_id": self.run.update_id, "already": False}

    def _is_done(self) -> bool:
        if self.run.task.complete is None:
            return self.attempt.ask(lambda control: is_complete(self.context, self.run, control))
        with self.context.plane.connect() as control:
            return is_complete(self.context, self.run, control)

    def _call(self, ctx: TaskContext) -> Any:
        with importable(user_code(self.context.settings)):
            try:
                return self.run.task.function(ctx, **self.run.values)
            except TidegateError:
                raise
            except Exception as error:
                raise _failed(self.run, error) from error

    def _publish(self, returned: object, destination: Target) -> dict[str, Any]:
        from tidegate.load.sources.dataframe import PublishWork
        from tidegate.spark.session import refuse_unreadable

        frame = _require_frame(self.run, returned)
        refuse_unreadable(frame)
        share = 1.0 if self.run.allow_removal else self.context.settings.safety.max_removed
        publish = make_publish(self.run, list(frame.columns), max_removed=share)
        report = PublishWork(self.context, publish, frame, destination, self.attempt).run()
        return asdict(report)


def make_publish(run: TaskRun, columns: list[str], *, max_removed: float = 1.0) -> PublishRequest:
    """What shall happen to the rows of a task; refuses a slice that nothing names."""
    task = run.task
    assert task.target is not None
    within: tuple[tuple[str, Any], ...] = ()
    if task.mode is Mode.DELETE_INSERT:
        within = tuple(
            (name, value)
            for name, value in run.parameters.items()
            if name in columns and not isinstance(value, list)
        )
        if not within and task.key is None:
            names = ", ".join(task.signature.names) or "none"
            raise DeclarationError(
                f"task {run}: delete_insert replaces the part of {task.target} that the "
                f"parameters name, and none of its parameters ({names}) is a column of what it "
                f"returns ({', '.join(columns)})",
                'return such a column, or use mode="merge" with a key, or mode="replace"',
            )
    given = "".join(f" --param {name}=…" for name in task.signature.names)
    limit = RemovalLimit.of(max_removed, f"tidegate run {task.name}{given} --allow-removal")
    return PublishRequest(
        target=task.target,
        update_id=run.update_id,
        key=task.key,
        cursor=None,
        rules=Rules(mode=task.mode, within=within, removal=limit),
        partitions=task.partitions,
    )


def _require_frame(run: TaskRun, value: object) -> DataFrame:
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        return value
    raise DeclarationError(
        f"task {run} has the target {run.task.target} and returned {type(value).__name__}, not a "
        "DataFrame",
        "return the DataFrame at the end of the function, or leave the target out",
    )


def _failed(run: TaskRun, error: Exception, what: str = "") -> TaskFailed:
    return TaskFailed(
        f"{what}task {run} failed: {words(error)}",
        "correct the function and run again; what is complete is not done again",
    )


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
