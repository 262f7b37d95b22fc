"""The jobs of events: what they lock, and how they are queued for a tick."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tidegate.control.draining import refuse_draining
from tidegate.control.jobs import Jobs
from tidegate.errors import BusyError, UsageError
from tidegate.model.event_phase import PHASES, SCHEDULED_NAME, Phase
from tidegate.model.job import EVENT, JobRequest, LockAt, Submitted
from tidegate.model.relation import MAX_NAME_BYTES, Endpoint, Relation
from tidegate.model.schedule import Schedule
from tidegate.model.scheduled import Scheduled, TickOutcome
from tidegate.pipeline.context import Context
from tidegate.pipeline.events import Events, find_events
from tidegate.postgres.connect import Connection
from tidegate.runtime.claiming import table_resource
from tidegate.runtime.scheduler import Enqueue, Enqueued, Prepare

COMMAND = "tidegate event run"


def phase_target(events: Events, phase: Phase) -> Endpoint | None:
    """What a phase locks and fences, beside the facts; the second holds the rows it claimed."""
    if phase is Phase.PROCESS:
        return None
    suffix = f"/{phase}"
    kept = events.model.facts.name.encode()[: MAX_NAME_BYTES - len(suffix)]
    name = kept.decode(errors="ignore") + suffix
    return Endpoint(events.connection, Relation(events.model.facts.schema, name))


def event_request(
    context: Context, events: Events, phase: Phase, *, payload: dict[str, Any] | None = None
) -> JobRequest:
    """The job of one phase, to be worked by who submits it."""
    target = phase_target(events, phase)
    return JobRequest(
        project=context.settings.project.name,
        kind=EVENT,
        name=phase.job_name,
        resource=None if target is None else table_resource(context, target),
        payload={
            "phase": phase.value,
            **({} if target is None else {"target": str(target)}),
            **(payload or {}),
        },
        max_attempts=context.settings.worker.max_attempts,
        lock_at=LockAt.NEVER if target is None else LockAt.SUBMIT,
    )


def scheduled_events(context: Context) -> list[Scheduled]:
    """The schedule of the project's events, if it has one."""
    settings = context.settings.events
    if settings.connection is None or settings.schedule is None:
        return []
    return [Scheduled(name=SCHEDULED_NAME, kind=EVENT, schedule=Schedule(settings.schedule))]


def prepare_events(context: Context) -> Prepare:
    """What a scheduler does for events: three jobs, each after the one before it."""

    def prepare(_: Scheduled, __: datetime) -> Enqueue:
        events = find_events(context)
        requests = [_queued(event_request(context, events, phase)) for phase in PHASES]

        def enqueue(control: Connection, actor: str) -> Enqueued:
            return _submit(context, control, requests, actor)

        return enqueue

    return prepare


def check_event(name: str, payload: dict[str, Any]) -> None:
    """Refuse a payload that no job of events could have."""
    read_phase(name, payload)


def read_phase(name: str, payload: dict[str, Any]) -> Phase:
    value = payload.get("phase") if isinstance(payload, dict) else None
    if value not in PHASES:
        raise UsageError(
            f"the job {name} is malformed: its payload names no phase of events",
            f"run it with: {COMMAND} --phase {'|'.join(PHASES)}",
        )
    return Phase(value)


def _queued(request: JobRequest) -> JobRequest:
    """The same for a worker: at most one waits or runs, and the lock is taken with the claim."""
    lock = request.lock_at if request.resource is None else LockAt.CLAIM
    return replace(request, lock_at=lock, unique_key=request.name)


def _submit(
    context: Context, control: Connection, requests: list[JobRequest], actor: str
) -> Enqueued:
    jobs = Jobs(context.plane)
    before: tuple[UUID, ...] = ()
    first: UUID | None = None
    queued = 0
    for request in requests:
        submitted = jobs.submit(control, replace(request, needs=before), actor)
        if submitted.job_id is None:
            refuse_draining(context.plane, control)
            raise BusyError(f"{request.name} was not queued: {submitted.outcome}", "try again")
        if submitted.outcome is Submitted.QUEUED:
            queued += 1
            first = first or submitted.job_id
        before = (submitted.job_id,)
    outcome = TickOutcome.QUEUED if queued else TickOutcome.COALESCED
    detail = f"{queued} of {len(requests)} queued" if 0 < queued < len(requests) else None
    return Enqueued(outcome, first or before[0], detail)
