"""One attempt at one task: call its function, publish what it returns, or note that it is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidegate.control.task_markers import TaskMarkers
from tidegate.destinations.destination import Destination
from tidegate.errors import (
    DeclarationError,
    TaskFailed,
    TidegateError,
    words,
)
from tidegate.model.publish import Publish
from tidegate.model.rules import Mode, RemovalLimit, Rules
from tidegate.model.task import TaskRun
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import Attempt
from tidegate.pipeline.task_context import TaskContext
from tidegate.pipeline.user_code import importable, user_code
from tidegate.postgres.connect import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    destination: Destination | None
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

    def _publish(self, returned: object, destination: Destination) -> dict[str, Any]:
        from tidegate.pipeline.publish import PublishWork
        from tidegate.spark.frame import refuse_unreadable

        frame = _require_frame(self.run, returned)
        refuse_unreadable(frame)
        share = 1.0 if self.run.allow_removal else self.context.settings.safety.max_removed
        publish = make_publish(self.run, list(frame.columns), max_removed=share)
        report = PublishWork(self.context, publish, frame, destination, self.attempt).run()
        return asdict(report)


def make_publish(run: TaskRun, columns: list[str], *, max_removed: float = 1.0) -> Publish:
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
    return Publish(
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
