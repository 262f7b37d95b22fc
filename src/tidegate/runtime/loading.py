"""Loads that a person asked for: a job that is worked here, once, and not by a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidegate.control.jobs import Jobs
from tidegate.control.workers import user_name
from tidegate.destinations.destination import Destination
from tidegate.errors import StaleAttempt
from tidegate.model.job import JobRequest
from tidegate.model.load import LoadResult
from tidegate.model.sync import Sync
from tidegate.pipeline.changed import refuse_moved
from tidegate.pipeline.context import Context
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.claiming import claim_table, table_resource
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.working import ClaimedWork


@dataclass(frozen=True, slots=True)
class CommandedLoads:
    """Loads into one sync's target, of a kind of their own: what the last run of the sync
    remembered stays what the next one needs."""

    context: Context
    heartbeat: Heartbeat
    sync: Sync
    kind: str
    command: str
    take_over: bool = False

    def run(
        self,
        work: Callable[[Destination, LiveAttempt], dict[str, Any]],
        payload: dict[str, Any] | None = None,
    ) -> UUID:
        """Do the work as a fenced attempt; StaleAttempt when another took the table over.

        Who is killed in it leaves a job that has failed; the command is what goes on.
        """
        context, sync = self.context, self.sync
        actor = f"{user_name()} ({self.command})"
        destination = context.destination(sync.target, sync.layout)
        context.control_id()
        with context.plane.connect() as control:
            refuse_moved(context, control, sync)
            request = JobRequest(
                project=sync.project,
                kind=self.kind,
                name=sync.name,
                resource=table_resource(context, sync.target),
                payload={"target": str(sync.target), "command": self.command, **(payload or {})},
                max_attempts=1,
                limits=sync.resources,
            )
            claimed = claim_table(
                context,
                control,
                destination,
                sync.target,
                request,
                self.heartbeat,
                actor=actor,
                take_over=self.take_over,
            )
            destination.sweep(lambda: Jobs(context.plane).live_attempts(control))
            won = ClaimedWork(
                context=context,
                control=control,
                destination=destination,
                claimed=claimed,
                actor=actor,
                what=f"{self.kind} of {sync.name}",
                interrupt=lambda: context.spark.interrupt(claimed.claim.attempt_id),
            ).run(lambda attempt: work(destination, attempt))
        if not won:
            raise StaleAttempt(
                f"the {self.kind} of {sync.name} was cancelled or taken over",
                f"what it had published is in; to go on: {self.command} {sync.name}",
            )
        return claimed.claim.job_id


def record_load(attempt: LiveAttempt, load: LoadResult) -> None:
    """Keep what a load did, for whoever watches or asks later."""
    attempt.record(
        "load",
        {
            "update_id": load.update_id,
            "batch": str(load.batch),
            "rows": load.rows,
            "changed": load.changed,
            "rejected": load.rejected,
            "seconds": round(load.seconds, 3),
        },
    )
