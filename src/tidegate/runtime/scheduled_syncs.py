"""Queueing a sync, or the tables of a group, for a tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from tidegate.control.draining import refuse_draining
from tidegate.control.jobs import Jobs
from tidegate.errors import BusyError
from tidegate.log import log
from tidegate.model.job import JobRequest, LockAt, Submission, Submitted
from tidegate.model.scheduled import Scheduled, TickOutcome
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.runtime.runner import RunOptions, sync_request
from tidegate.runtime.scheduler import Enqueue, Enqueued, Prepare


def prepare_syncs(context: Context, expand: Callable[[str], Sequence[Sync]]) -> Prepare:
    """What a scheduler does for syncs; `expand` gives the tables that a name stands for."""

    def prepare(scheduled: Scheduled, tick: datetime) -> Enqueue:
        requests, refused = [], []
        for sync in expand(scheduled.name):
            if sync.refused is None:
                requests.append(scheduled_request(context, sync))
            elif not sync.refused.permanent:
                # It may be well again in a moment, and the tick is still due then.
                raise sync.refused
            else:
                log.warning("sync_not_queued", name=sync.name, error=sync.refused.message)
                refused.append(sync.refused.message)

        def enqueue(control: Connection, actor: str) -> Enqueued:
            if not requests:
                reason = refused[0] if refused else "it stands for no table"
                return Enqueued(TickOutcome.FAILED, detail=reason)
            return submit_all(context, control, requests, actor)

        return enqueue

    return prepare


def scheduled_request(context: Context, sync: Sync) -> JobRequest:
    """The job of a sync that nobody waits for: it takes its table when it starts."""
    return replace(
        sync_request(context, sync, RunOptions()),
        lock_at=LockAt.CLAIM,
        unique_key=f"sync:{sync.name}",
        priority=sync.priority,
    )


def submit_all(
    context: Context, control: Connection, requests: Sequence[JobRequest], actor: str
) -> Enqueued:
    """Queue those whose last run has ended, in the caller's transaction."""
    found = [submit_one(context, control, request, actor) for request in requests]
    queued = [one for one in found if one.outcome is Submitted.QUEUED]
    detail = f"{len(queued)} of {len(found)} queued" if len(found) > 1 else None
    if queued:
        return Enqueued(TickOutcome.QUEUED, queued[0].job_id, detail)
    return Enqueued(TickOutcome.COALESCED, found[0].job_id, detail)


def submit_one(
    context: Context, control: Connection, request: JobRequest, actor: str
) -> Submission:
    submitted = Jobs(context.plane).submit(control, request, actor)
    if submitted.job_id is None:
        refuse_draining(context.plane, control)
        raise BusyError(f"{request.name} was not queued: {submitted.outcome}", "try again")
    return submitted
