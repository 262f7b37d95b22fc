"""What becomes of a job whose process was told to go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tidegate.control.jobs import Jobs
from tidegate.control.workers import user_name
from tidegate.errors import UsageError
from tidegate.model.job import LOADS, Claim, JobStatus
from tidegate.postgres.connect import Connection
from tidegate.runtime.cancel import cancel_job
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.lease import Lease
from tidegate.runtime.reclaim import fence_out, is_published
from tidegate.runtime.recording import settle_job
from tidegate.runtime.targets import destination_of_job


def leave_run(context: JobContext, heartbeat: Heartbeat, reason: str, *, cancel: bool) -> int:
    """Leave the jobs of a process that works its own; returns how many were still its own.

    A person who presses Ctrl-C wants the work to end: it is cancelled. Whoever stops the machine
    does not: the jobs go back, for the next run or a worker to take up.
    """
    leases = heartbeat.leases()

    def leave(lease: Lease) -> bool:
        actor = f"{user_name()} ({heartbeat.worker.command})"
        if not cancel:
            return leave_job(context, lease.claim, actor=actor, reason=reason)
        with context.plane.connect() as control, suppress(UsageError):
            cancel_job(context, control, lease.claim.job_id, actor=f"{actor}: {reason}")
            return True
        return False

    with ThreadPoolExecutor(max(1, len(leases))) as pool:
        return sum(pool.map(leave, leases))


def leave_job(context: JobContext, claim: Claim, *, actor: str, reason: str) -> bool:
    """Give a load back, end anything else; False when the attempt was not ours any more.

    A load that is just being published is found published by whoever takes the job up. Other
    work ends as failed, but never over a possible publish: the fence is raised and the marker
    read before. Where that does not succeed, the job is left to its lease.
    """
    with context.plane.connect() as control:
        left = _leave(context, control, claim, actor, reason)
        settle_job(context.plane, control, claim.job_id)
        return left


def _leave(context: JobContext, control: Connection, claim: Claim, actor: str, reason: str) -> bool:
    jobs = Jobs(context.plane)
    if claim.kind in LOADS:
        return jobs.give_back(control, claim, actor=f"{actor}: {reason}")
    published = False
    destination = destination_of_job(context, claim.kind, claim.payload)
    if destination is not None:
        fence_out(context.plane, control, context.control_id(), destination)
        published = is_published(destination, claim.attempt_id, claim.plan, claim.payload)
    return jobs.finish(
        control,
        claim,
        JobStatus.DONE if published else JobStatus.FAILED,
        actor=actor,
        error=None if published else reason,
    )
