"""Queueing a task, and what it requires that is missing, for a tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from tidegate.control.schedules import Schedules
from tidegate.model.scheduled import Scheduled, TickOutcome
from tidegate.model.task import Step, Task
from tidegate.pipeline.context import Context
from tidegate.pipeline.task_graph import TaskGraph, find_task
from tidegate.pipeline.task_ticks import run_at
from tidegate.postgres.connect import Connection
from tidegate.runtime.disabling import why_runs_disabled
from tidegate.runtime.scheduler import Enqueue, Enqueued, Prepare
from tidegate.runtime.submitting import QueueOptions
from tidegate.runtime.task_graph_run import FindSyncs
from tidegate.runtime.task_submitting import step_requests, submit_graph


def prepare_tasks(
    context: Context,
    tasks: Callable[[], Mapping[str, Task]],
    build: Callable[[Sequence[Step]], TaskGraph],
    find_syncs: FindSyncs,
) -> Prepare:
    """What a scheduler does for tasks; `build` says what is missing of a graph."""

    def prepare(scheduled: Scheduled, tick: datetime) -> Enqueue:
        run = run_at(find_task(tasks(), scheduled.name), tick)
        graph = build([run])
        requests = step_requests(context, graph, find_syncs, QueueOptions())

        def enqueue(control: Connection, actor: str) -> Enqueued:
            if not graph.missing:
                return Enqueued(TickOutcome.COMPLETE, detail=str(run))
            now = Schedules(context.plane, context.settings.project.name).clock(control)
            disabled = why_runs_disabled(context, control, graph.missing, now)
            if disabled is not None:
                return Enqueued(TickOutcome.DISABLED, detail=disabled)
            queued = submit_graph(context, control, graph, requests, actor=actor)
            (found,) = [one for one in queued if one.step == run]
            outcome = TickOutcome.QUEUED if found.created else TickOutcome.COALESCED
            return Enqueued(outcome, found.job_ids[0], str(run))

        return enqueue

    return prepare
