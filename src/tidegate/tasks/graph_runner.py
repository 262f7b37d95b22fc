"""Run a whole graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum

import psycopg

from tidegate.config.sync import Sync
from tidegate.config.task import Step, SyncRun, TaskRun
from tidegate.core.errors import LoadError, TidegateError, words
from tidegate.core.log import log
from tidegate.jobs.claim import table_resource
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import Holder, JobStatus
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.load.context import Context
from tidegate.load.runner import ManyReport, RunOptions, run_many
from tidegate.postgres.connection import Connection, translate
from tidegate.tasks.graph import TaskGraph
from tidegate.tasks.runner import TaskReport, TaskRunner


def close_finished_tasks(
    context: Context, heartbeat: Heartbeat, complete: Iterable[TaskRun]
) -> int:
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
    dead = {one.attempt_id for one in LostAttempts(context.plane).list(control, resource=resource)}
    return holder.status is JobStatus.RUNNING and holder.attempt_id not in dead


FindSyncs = Callable[[str], Sequence[Sync]]


class StepState(StrEnum):
    """How a step of a graph ended."""

    COMPLETE = "complete"
    """it was before, and was not looked into"""
    DONE = "done"
    FAILED = "failed"
    BLOCKED = "blocked"
    """what it requires failed"""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How one step ended, with a report or with an error."""

    step: Step
    state: StepState
    task: TaskReport | None = None
    syncs: ManyReport | None = None
    error: TidegateError | None = None


@dataclass(frozen=True, slots=True)
class GraphReport:
    """How a graph ended, each step after what it requires."""

    graph: TaskGraph
    ends: tuple[StepEnd, ...]

    @property
    def failed(self) -> tuple[StepEnd, ...]:
        """Those that failed themselves."""
        return tuple(one for one in self.ends if one.state is StepState.FAILED)

    @property
    def exit_code(self) -> int:
        """0, or the code that all failures share, or 1."""
        codes = {one.error.exit_code for one in self.failed if one.error is not None}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 1

    def end(self, step: Step) -> StepEnd:
        return next(one for one in self.ends if one.step == step)


@dataclass(slots=True)
class GraphRun:
    """One graph on its way; `started` and `ended` are told of each step."""

    context: Context
    heartbeat: Heartbeat
    graph: TaskGraph
    find_syncs: FindSyncs
    concurrency: int = 1
    started: Callable[[Step], None] = lambda _: None
    ended: Callable[[StepEnd], None] = lambda _: None
    _found: dict[Step, StepEnd] = field(default_factory=dict)

    def run(self) -> GraphReport:
        """Run it to its end; what fails is in the report."""
        close_finished_tasks(self.context, self.heartbeat, self.graph.complete)
        for step in self.graph.order:
            if step in self.graph.complete:
                self._end(StepEnd(step, StepState.COMPLETE))
        waiting = dict.fromkeys(self.graph.missing)
        running: dict[Future[StepEnd], Step] = {}
        pool = ThreadPoolExecutor(max(1, self.concurrency), "tidegate-task")
        try:
            while waiting or running:
                for step in list(waiting):
                    if len(running) >= self.concurrency:
                        break
                    if self._is_blocked(step):
                        del waiting[step]
                    elif self._is_ready(step, list(running.values())):
                        del waiting[step]
                        self.started(step)
                        running[pool.submit(self._run, step)] = step
                if not running:
                    continue
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    self._end(future.result())
        finally:
            # Interrupted: what has begun is left to the next run, what has not is not begun.
            pool.shutdown(wait=False, cancel_futures=True)
        return GraphReport(self.graph, tuple(self._found[step] for step in self.graph.order))

    def _end(self, end: StepEnd) -> None:
        self._found[end.step] = end
        self.ended(end)

    def _is_blocked(self, step: Step) -> bool:
        """Whether what it requires failed; it is then ended."""
        bad = (StepState.FAILED, StepState.BLOCKED)
        for needed in self.graph.requires(step):
            end = self._found.get(needed)
            if end is not None and end.state in bad:
                error = LoadError(f"{step} was not run: it requires {needed}, which failed")
                self._end(StepEnd(step, StepState.BLOCKED, error=error))
                return True
        return False

    def _is_ready(self, step: Step, running: Sequence[Step]) -> bool:
        if any(needed not in self._found for needed in self.graph.requires(step)):
            return False
        # Two loads of one table cannot run side by side.
        target = _target(step)
        return target is None or all(_target(one) != target for one in running)

    def _run(self, step: Step) -> StepEnd:
        try:
            if isinstance(step, SyncRun):
                return self._run_syncs(step)
            report = TaskRunner(self.context, self.heartbeat).run(step)
            return StepEnd(step, StepState.DONE, task=report)
        except TidegateError as error:
            return StepEnd(step, StepState.FAILED, error=error)
        except psycopg.Error as error:
            return StepEnd(step, StepState.FAILED, error=translate(error, str(step)))
        except Exception as error:
            log.exception("run_failed", step=str(step))
            found = LoadError(f"{step}: {words(error)}")
            return StepEnd(step, StepState.FAILED, error=found)

    def _run_syncs(self, step: SyncRun) -> StepEnd:
        report = run_many(
            self.context,
            self.find_syncs(step.name),
            RunOptions(allow_removal=step.allow_removal),
            concurrency=self.concurrency,
            heartbeat=self.heartbeat,
        )
        for end in report.ends:
            if end.error is not None:
                return StepEnd(step, StepState.FAILED, syncs=report, error=end.error)
            if end.report is not None and end.report.status != "done":
                error = LoadError(
                    f"sync {end.sync.name} was taken over by another process, or cancelled",
                    "run again",
                )
                return StepEnd(step, StepState.FAILED, syncs=report, error=error)
        return StepEnd(step, StepState.DONE, syncs=report)


def _target(step: Step) -> str | None:
    if isinstance(step, TaskRun) and step.task.target is not None:
        return str(step.task.target)
    return None
