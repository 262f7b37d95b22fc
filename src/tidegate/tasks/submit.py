"""Queue a graph: by hand or by schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from tidegate.config.task import Step, SyncRun, Task, run_at
from tidegate.core.errors import BusyError
from tidegate.jobs.drain import refuse_draining
from tidegate.jobs.job import JobRequest, LockAt, Submitted
from tidegate.jobs.queue import Jobs
from tidegate.jobs.scheduler import Enqueue, Enqueued, Prepare, why_runs_disabled
from tidegate.jobs.schedules import Scheduled, Schedules, TickOutcome
from tidegate.load.context import Context
from tidegate.load.runner import RunOptions, sync_request
from tidegate.load.submit import QueueOptions
from tidegate.postgres.connection import Connection
from tidegate.tasks.graph import TaskGraph, find_task
from tidegate.tasks.graph_runner import FindSyncs
from tidegate.tasks.runner import task_request


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """The jobs of one step; not `created` where they waited or ran already."""

    step: Step
    job_ids: tuple[UUID, ...]
    created: bool


def step_requests(
    context: Context, graph: TaskGraph, find_syncs: FindSyncs, order: QueueOptions
) -> dict[Step, list[JobRequest]]:
    """The jobs of all that is missing, without what they need; asks the destinations."""
    found: dict[Step, list[JobRequest]] = {}
    for step in graph.missing:
        if isinstance(step, SyncRun):
            requests = [
                replace(
                    sync_request(context, sync, RunOptions(allow_removal=step.allow_removal)),
                    unique_key=f"sync:{sync.name}",
                )
                for sync in find_syncs(step.name)
            ]
        else:
            requests = [replace(task_request(context, step), unique_key=step.unique_key)]
        found[step] = [
            replace(
                one,
                lock_at=LockAt.CLAIM,
                priority=order.priority or one.priority,
                visible_at=order.visible_at,
                delay_seconds=order.delay_seconds,
            )
            for one in requests
        ]
    return found


def submit_graph(
    context: Context,
    control: Connection,
    graph: TaskGraph,
    requests: dict[Step, list[JobRequest]],
    *,
    actor: str,
) -> list[QueuedStep]:
    """Queue what is missing, all of it or nothing; what is queued already is not queued twice."""
    jobs = Jobs(context.plane)
    found: dict[Step, QueuedStep] = {}
    with control.transaction():
        refuse_draining(context.plane, control)
        for step in graph.missing:
            needed = [one for one in graph.requires(step) if one in found]
            needs = tuple(job_id for one in needed for job_id in found[one].job_ids)
            found[step] = _submit(jobs, control, step, requests[step], needs, actor)
    return list(found.values())


def _submit(
    jobs: Jobs,
    control: Connection,
    step: Step,
    requests: Sequence[JobRequest],
    needs: tuple[UUID, ...],
    actor: str,
) -> QueuedStep:
    ids: list[UUID] = []
    created = False
    for request in requests:
        submitted = jobs.submit(control, replace(request, needs=needs), actor)
        if submitted.job_id is None:
            raise BusyError(
                f"{step} was not queued ({submitted.outcome}), and so nothing of the graph was",
                "try again",
            )
        ids.append(submitted.job_id)
        created = created or submitted.outcome is Submitted.QUEUED
    return QueuedStep(step, tuple(ids), created)


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
