"""Queueing a graph for workers: each job waits for those that it requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tidegate.control.draining import refuse_draining
from tidegate.control.jobs import Jobs
from tidegate.errors import BusyError
from tidegate.model.job import JobRequest, LockAt, Submitted
from tidegate.model.task import Step, SyncRun
from tidegate.pipeline.context import Context
from tidegate.pipeline.task_graph import TaskGraph
from tidegate.postgres.connect import Connection
from tidegate.runtime.runner import RunOptions, sync_request
from tidegate.runtime.submitting import QueueOptions
from tidegate.runtime.task_graph_run import FindSyncs
from tidegate.runtime.task_runner import task_request


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
