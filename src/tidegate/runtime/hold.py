"""Holding a destination table for work that is not a load: locked, fenced, in the history."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from tidegate.control.jobs import Jobs
from tidegate.control.workers import Worker, Workers
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import BusyError, StaleAttempt
from tidegate.ledger.fences import Fence
from tidegate.model.identity import resource_name
from tidegate.model.job import JobRequest, JobStatus
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connect import Connection
from tidegate.runtime.attempt import raise_fence
from tidegate.runtime.reclaim import reclaim_dead
from tidegate.version import __version__

_SUBMIT_TRIES = 3


@dataclass(frozen=True, slots=True)
class Hold:
    """A table that nobody else can publish into while it is held."""

    destination: PostgresDestination
    fence: Fence
    control: Connection


@contextmanager
def hold_table(
    context: Context,
    target: Endpoint,
    request: dict[str, str],
    *,
    result: dict[str, Any],
    command: str,
    take_over: bool = False,
) -> Iterator[Hold]:
    """Lock the table and fence every older attempt out; BusyError names who has it.

    `request` holds the kind and name of the job that stands for this work in the history. What
    a dead run left locked is freed first; what nobody works on gives way.
    """
    actor = f"{getpass.getuser()} ({command})"
    jobs = Jobs(context.plane)
    control_id = context.control_id()
    destination = context.destination(target)
    with destination.open() as connection:
        resource = resource_name(database_identity(connection), target.relation)
    with context.plane.connect() as control, context.plane.connect() as session:
        if take_over:
            destination.ledger.ensure()
            with destination.open() as connection:
                destination.fences.seize(connection, str(target.relation), control_id)
        reclaim_dead(
            jobs, control, control_id, lambda _: destination, actor=actor, resource=resource
        )
        worker = Worker.of_this_process()
        Workers(context.plane).register(session, worker, __version__)
        job = JobRequest(
            project=context.settings.project.name,
            kind=request["kind"],
            name=request["name"],
            resource=resource,
            payload={"target": str(target), "command": command},
            max_attempts=1,
        )
        job_id = _submit(jobs, control, job, target, actor)
        lease = context.settings.worker.lease_seconds
        claim = jobs.claim(control, worker.worker_id, lease_seconds=lease, job_id=job_id)
        if claim is None:
            raise BusyError(f"{target} was taken by another process a moment ago", "try again")
        try:
            fence = raise_fence(destination, jobs, control, claim, control_id)
            yield Hold(destination, fence, control)
        except BaseException as error:
            with suppress(psycopg.Error):
                jobs.finish(control, claim, JobStatus.FAILED, actor=actor, error=str(error))
            raise
        if not jobs.finish(control, claim, JobStatus.DONE, actor=actor, result=result):
            raise StaleAttempt(f"the attempt {claim.attempt_id} was replaced by another")
        Workers(context.plane).forget(control, worker)


def _submit(jobs: Jobs, control: Connection, job: JobRequest, target: Endpoint, actor: str) -> UUID:
    for _ in range(_SUBMIT_TRIES):
        job_id = jobs.submit(control, job, actor)
        if job_id is not None:
            return job_id
        holder = jobs.holder(control, job.resource)
        if holder is None:
            continue
        if holder.status is not JobStatus.PENDING:
            raise BusyError(
                f"{target} is held by {holder}", "wait until it has finished, then try again"
            )
        jobs.drop_pending(control, holder.job_id, actor, f"superseded by {job.payload['command']}")
    raise BusyError(f"{target} is wanted by several processes at once", "try again")
