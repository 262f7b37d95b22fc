"""What becomes of a job whose process was told to go."""

from __future__ import annotations

from tidegate.control.jobs import Jobs
from tidegate.model.job import LOADS, Claim, JobStatus
from tidegate.pipeline.context import Context
from tidegate.runtime.reclaim import fence_out, is_published
from tidegate.runtime.targets import destination_of_job


def leave_job(context: Context, claim: Claim, *, actor: str, reason: str) -> bool:
    """Give a load back, end anything else; False when the attempt was not ours any more.

    A load that is just being published is found published by whoever takes the job up. Other
    work ends as failed, but never over a possible publish: the fence is raised and the marker
    read before. Where that does not succeed, the job is left to its lease.
    """
    jobs = Jobs(context.plane)
    with context.plane.connect() as control:
        if claim.kind in LOADS:
            return jobs.give_back(control, claim, actor=f"{actor}: {reason}")
        published = False
        destination = destination_of_job(context, claim.kind, claim.payload)
        if destination is not None:
            fence_out(context.plane, control, context.control_id(), destination)
            published = is_published(destination, claim.plan, claim.payload)
        return jobs.finish(
            control,
            claim,
            JobStatus.DONE if published else JobStatus.FAILED,
            actor=actor,
            error=None if published else reason,
        )
