"""`tg.publish`: a DataFrame into a table, once, as a fenced attempt at a job."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.control.dead import DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.control.workers import user_name
from tidegate.destinations.destination import Destination
from tidegate.errors import BusyError, StaleAttempt
from tidegate.model.job import PUBLISH, Holder, JobRequest, JobStatus
from tidegate.model.publish import Publish, PublishReport
from tidegate.pipeline.context import Context
from tidegate.pipeline.publish import PublishWork, frame_shape
from tidegate.postgres.connect import Connection
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.claiming import Claimed, claim_table, open_heartbeat, table_resource
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.working import ClaimedWork
from tidegate.spark.tags import interrupt, work_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_SECONDS = 0.25


class Publisher:
    """Publishes DataFrames from this process, in the Spark session that they belong to."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._jobs = Jobs(context.plane)
        self._actor = f"{user_name()} (tg.publish)"

    def publish(
        self, frame: DataFrame, publish: Publish, *, wait_seconds: float = 0.0
    ) -> PublishReport:
        """Return when the rows are in, by us or by another; raise when they are not."""
        context = self._context
        resource = table_resource(context, publish.target)
        request = JobRequest(
            project=context.settings.project.name,
            kind=PUBLISH,
            name=str(publish.target.relation),
            resource=resource,
            payload=publish.payload,
            max_attempts=context.settings.worker.max_attempts,
        )
        destination = context.destination(publish.target)
        with context.plane.connect() as control, open_heartbeat(context, "tg.publish") as beat:
            if self._is_settled(control, destination, publish, resource):
                return PublishReport.found(publish.update_id)
            # What is wrong with the DataFrame is said before there is a job.
            frame_shape(frame, publish, destination)
            claimed = self._claim(control, destination, publish, request, beat, wait_seconds)
            if claimed is None:
                return PublishReport.found(publish.update_id)
            return self._work(frame, publish, destination, control, claimed)

    def _claim(
        self,
        control: Connection,
        destination: Destination,
        publish: Publish,
        request: JobRequest,
        heartbeat: Heartbeat,
        wait_seconds: float,
    ) -> Claimed | None:
        """The table for ourselves; None when another one has published the same meanwhile."""
        deadline = time.monotonic() + wait_seconds
        resource = str(request.resource)
        while not self._is_settled(control, destination, publish, resource):
            try:
                holder = self._jobs.holder(control, resource)
                if holder is not None and self._is_live(control, holder, resource):
                    raise BusyError(
                        f"{publish.target} is held by {holder}",
                        "try again when it has finished, or wait longer: wait=…",
                    )
                return claim_table(
                    self._context,
                    control,
                    destination,
                    publish.target,
                    request,
                    heartbeat,
                    actor=self._actor,
                )
            except BusyError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)
        return None

    def _is_settled(
        self,
        control: Connection,
        destination: Destination,
        publish: Publish,
        resource: str,
    ) -> bool:
        """Whether the rows are in and nothing is left to do.

        Where a job of the same publish died after its commit, it is taken up to be closed.
        """
        if not destination.exists(publish.update_id):
            return False
        holder = self._jobs.holder(control, resource)
        ours = holder is not None and holder.payload.get("update_id") == publish.update_id
        return holder is None or not ours or self._is_live(control, holder, resource)

    def _is_live(self, control: Connection, holder: Holder, resource: str) -> bool:
        attempts = DeadAttempts(self._context.plane).list(control, resource=resource)
        dead = {attempt.attempt_id for attempt in attempts}
        return holder.status is JobStatus.RUNNING and holder.attempt_id not in dead

    def _work(
        self,
        frame: DataFrame,
        publish: Publish,
        destination: Destination,
        control: Connection,
        claimed: Claimed,
    ) -> PublishReport:
        reports: list[PublishReport] = []

        def work(attempt: LiveAttempt) -> dict[str, Any]:
            destination.sweep(lambda: self._jobs.live_attempts(control))
            report = PublishWork(self._context, publish, frame, destination, attempt).run()
            reports.append(report)
            return asdict(report)

        won = ClaimedWork(
            context=self._context,
            control=control,
            destination=destination,
            claimed=claimed,
            actor=self._actor,
            what=str(publish),
            interrupt=partial(interrupt, frame.sparkSession, work_tag(claimed.claim.attempt_id)),
        ).run(work)
        if won:
            return reports[-1]
        if destination.exists(publish.update_id):
            return PublishReport.found(publish.update_id)
        raise StaleAttempt(
            f"{publish} was taken over by another process, which has not finished it yet",
            "call it again: it waits for that one, or does what is left",
        )
