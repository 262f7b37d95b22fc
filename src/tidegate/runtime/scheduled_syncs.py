"""Queueing a sync, or the tables of a group, for a tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from tidegate.control.draining import refuse_draining
from tidegate.control.jobs import Jobs
from tidegate.control.schedules import Schedules
from tidegate.errors import BusyError
from tidegate.log import log
from tidegate.model.job import JobRequest, LockAt, Submission, Submitted
from tidegate.model.scheduled import Scheduled, TickOutcome
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.runtime.disabling import why_disabled
from tidegate.runtime.lease import now
from tidegate.runtime.runner import RunOptions, sync_request
from tidegate.runtime.scheduler import Enqueue, Enqueued, Prepare

_FRESH_SECONDS = 5.0


def prepare_syncs(context: Context, expand: Callable[[str], Sequence[Sync]]) -> Prepare:
    """What a scheduler does for syncs; `expand` gives the tables that a name stands for."""
    known: dict[str, tuple[float, Enqueue]] = {}

    def prepare(scheduled: Scheduled, tick: datetime) -> Enqueue:
        # Many ticks that are caught up with at once need not ask the source each.
        made_at, made = known.get(scheduled.name, (0.0, None))
        if made is None or now() - made_at > _FRESH_SECONDS:
            made = prepare_now(scheduled)
            known[scheduled.name] = now(), made
        return made

    def prepare_now(scheduled: Scheduled) -> Enqueue:
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
            due, disabled = _not_disabled(context, control, scheduled, requests)
            if not due:
                return Enqueued(TickOutcome.DISABLED, detail=disabled)
            return submit_all(context, control, due, actor)

        return enqueue

    return prepare


def _not_disabled(
    context: Context, control: Connection, scheduled: Scheduled, requests: Sequence[JobRequest]
) -> tuple[list[JobRequest], str | None]:
    """The tables of a group that did not fail too often, and why another is left out.

    What is scheduled under its own name was judged before.
    """
    clock = Schedules(context.plane, context.settings.project.name).clock(control)
    due, reason = [], None
    for request in requests:
        table = replace(scheduled, name=request.name)
        why = None if table == scheduled else why_disabled(context, control, table, clock)
        if why is None:
            due.append(request)
        else:
            reason = f"{request.name}: {why}"
    return due, reason


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
