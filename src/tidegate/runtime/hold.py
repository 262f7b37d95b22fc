"""Holding a destination table for work that is not a load: locked, fenced, in the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidegate.control.jobs import Jobs
from tidegate.control.tokens import Tokens
from tidegate.control.workers import user_name
from tidegate.errors import CommitUnknown, StaleAttempt, words
from tidegate.ledger.fences import Fence, FencedTable
from tidegate.model.job import JobRequest, JobStatus
from tidegate.model.relation import Endpoint
from tidegate.postgres.connect import Connection
from tidegate.runtime.attempt import raise_fence
from tidegate.runtime.attempt_session import AttemptSession
from tidegate.runtime.claiming import claim_table, open_heartbeat, table_resource
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.recording import record_end, record_start


@dataclass(frozen=True, slots=True)
class Hold:
    """A table that nobody else can publish into while it is held."""

    destination: FencedTable
    fence: Fence
    control: Connection
    check_alive: Callable[[], None]
    """raises StaleAttempt when the table may be another's by now"""


@contextmanager
def hold_table(
    context: JobContext,
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
    actor = f"{user_name()} ({command})"
    jobs = Jobs(context.plane)
    destination = context.destination(target)
    job = JobRequest(
        project=context.settings.project.name,
        kind=request["kind"],
        name=request["name"],
        resource=table_resource(context, target),
        payload={"target": str(target), "command": command},
        max_attempts=1,
    )
    with context.plane.connect() as control, open_heartbeat(context, command) as heartbeat:
        claimed = claim_table(
            context, control, destination, target, job, heartbeat, actor=actor, take_over=take_over
        )
        claim = claimed.claim
        lease = heartbeat.hold(claim, since=claimed.since, interrupt=lambda: None)
        session = AttemptSession(context.plane, control, heartbeat, lease)
        record_start(context, control, claim)
        try:
            fence = raise_fence(
                destination, Tokens(context.plane), control, claim, context.control_id()
            )
            try:
                yield Hold(destination, fence, control, lease.check_alive)
            except CommitUnknown:
                # Whether it is in is not known, so nobody may call the job failed: whoever takes
                # it back finds out.
                raise
            except BaseException as error:
                with suppress(psycopg.Error):
                    jobs.finish(control, claim, JobStatus.FAILED, actor=actor, error=words(error))
                record_end(context, control, claim, error)
                raise
            lease.settle()
            won = session.write(
                lambda control: (
                    jobs.finish(control, claim, JobStatus.DONE, actor=actor, result=result)
                    # Or it was done, and the answer was lost.
                    or jobs.outcome(control, claim) == JobStatus.DONE
                )
            )
            if not won:
                raise StaleAttempt(f"the attempt {claim.attempt_id} was replaced by another")
            record_end(context, session.connection, claim)
        finally:
            heartbeat.drop(lease)
            if session.connection is not control:
                session.connection.close()
