"""`tidegate run`: submit a job, claim it and work it in this process."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import psycopg
import structlog

from tidegate.control.jobs import DeadAttempt, Jobs
from tidegate.control.observations import Observations
from tidegate.control.workers import Worker, Workers
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import BusyError, CommitUnknown, StaleAttempt, TidegateError
from tidegate.failpoints import reach
from tidegate.model.identity import resource_name
from tidegate.model.job import Claim, JobRequest, JobStatus
from tidegate.model.load import LoadResult
from tidegate.model.relation import Endpoint
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import resolve_source
from tidegate.pipeline.sync import SyncOutcome, SyncWork
from tidegate.postgres.catalog import database_identity
from tidegate.postgres.connect import Connection, translate
from tidegate.runtime.attempt import LiveAttempt, raise_fence
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.reclaim import reclaim_dead
from tidegate.sources.postgres import PostgresSource
from tidegate.version import __version__

log = structlog.get_logger()

KIND = "sync"
_SUBMIT_TRIES = 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the caller of a run may ask for."""

    full_refresh: bool = False
    max_batches: int | None = None
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended; `stale` means that another attempt took over."""

    job_id: UUID
    status: str
    outcome: SyncOutcome

    @property
    def rows(self) -> int:
        """How many rows were loaded."""
        return self.outcome.rows

    @property
    def loads(self) -> list[LoadResult]:
        return self.outcome.loads

    @property
    def watermark(self) -> str | None:
        """How far the sync has got."""
        return self.outcome.watermark.value if self.outcome.watermark else None

    @property
    def found_nothing(self) -> bool:
        return self.status == "done" and not self.outcome.loads


class Runner:
    """Runs syncs in this process, each as a fenced attempt at a job."""

    def __init__(
        self, context: Context, *, step: Callable[[Sync, LoadResult], None] | None = None
    ) -> None:
        self._context = context
        self._jobs = Jobs(context.plane)
        self._step = step or (lambda _sync, _load: None)
        self._actor = f"{getpass.getuser()} (tidegate run)"

    def run(self, sync: Sync, options: RunOptions | None = None) -> RunReport:
        """Run one sync to its horizon; refuses bad declarations before anything is written."""
        options = options or RunOptions()
        context = self._context
        with context.databases.connect(sync.source.connection, "tidegate source") as source_session:
            source = resolve_source(source_session, sync)
            with context.databases.lease(sync.target.connection) as target_session:
                resource = resource_name(database_identity(target_session), sync.target.relation)
            control_id = context.control_id()
            destination = context.destination(sync.target)
            with context.plane.connect() as control:
                claim, worker, worker_session = self._claim(
                    control, sync, options, resource, control_id, destination
                )
                return self._work(
                    sync,
                    options,
                    source,
                    source_session,
                    destination,
                    control,
                    control_id,
                    claim,
                    worker,
                    worker_session,
                )

    def _claim(
        self,
        control: Connection,
        sync: Sync,
        options: RunOptions,
        resource: str,
        control_id: UUID,
        destination: PostgresDestination,
    ) -> tuple[Claim, Worker, Connection]:
        """Submit and claim, or take over what a dead run of the same sync left behind."""
        if options.take_over:
            self._take_over(destination, control_id)
        reclaim_dead(
            self._jobs,
            control,
            control_id,
            lambda dead: self._destination_of(dead, resource, destination),
            actor=self._actor,
            resource=resource,
        )
        destination.sweep(lambda: self._jobs.live_attempts(control))
        worker = Worker.of_this_process()
        # A session of its own: the worker's advisory lock lives exactly as long.
        worker_session = self._context.plane.connect()
        try:
            Workers(self._context.plane).register(worker_session, worker, __version__)
            job_id = self._submit(control, sync, options, resource)
            reach("job.submitted")
            claim = self._jobs.claim(
                control,
                worker.worker_id,
                lease_seconds=self._context.settings.worker.lease_seconds,
                job_id=job_id,
            )
            if claim is None:
                holder = self._jobs.holder(control, resource)
                raise BusyError(
                    f"{sync.target} was taken a moment ago by {holder or 'another process'}",
                    "wait until it has finished, then run again",
                )
        except BaseException:
            worker_session.close()
            raise
        reach("job.claimed")
        return claim, worker, worker_session

    def _submit(self, control: Connection, sync: Sync, options: RunOptions, resource: str) -> UUID:
        payload = {"target": str(sync.target), "full_refresh": options.full_refresh}
        request = JobRequest(
            project=sync.project,
            kind=KIND,
            name=sync.name,
            resource=resource,
            payload=payload,
            max_attempts=self._context.settings.worker.max_attempts,
        )
        for _ in range(_SUBMIT_TRIES):
            job_id = self._jobs.submit(control, request, self._actor)
            if job_id is not None:
                return job_id
            holder = self._jobs.holder(control, resource)
            if holder is None:
                continue
            if holder.status is not JobStatus.PENDING:
                raise BusyError(
                    f"{sync.target} is being loaded by {holder}",
                    "wait until it has finished, then run again",
                )
            if holder.name == sync.name and holder.payload == payload:
                return holder.job_id
            self._jobs.drop_pending(
                control, holder.job_id, self._actor, f"superseded by a run of {sync.name}"
            )
        raise BusyError(f"{sync.target} is wanted by several processes at once", "try again")

    def _work(
        self,
        sync: Sync,
        options: RunOptions,
        source: PostgresSource,
        source_session: Connection,
        destination: PostgresDestination,
        control: Connection,
        control_id: UUID,
        claim: Claim,
        worker: Worker,
        worker_session: Connection,
    ) -> RunReport:
        settings = self._context.settings.worker
        heartbeat = Heartbeat(
            worker_session,
            self._jobs,
            worker,
            claim,
            lease_seconds=settings.lease_seconds,
            interval_seconds=settings.heartbeat_seconds,
            interrupt=self._interrupt_spark,
        )
        heartbeat.start()
        outcome = SyncOutcome()
        try:
            fence = raise_fence(destination, self._jobs, control, claim, control_id)
            work = SyncWork(
                context=self._context,
                sync=sync,
                source=source,
                connection=source_session,
                destination=destination,
                attempt=LiveAttempt(self._jobs, control, claim, heartbeat, fence, self._actor),
                memory=Observations(self._context.plane, control, sync.pipeline),
                known_fingerprints=self._jobs.last_result(
                    control, sync.project, KIND, sync.name
                ).get("fingerprints", {}),
                full_refresh=options.full_refresh,
                max_batches=options.max_batches,
                step=lambda load: self._step(sync, load),
            )
            outcome = work.outcome
            try:
                work.run()
            except Exception:
                # Interrupted Spark work fails in many ways; the reason is that we were replaced.
                heartbeat.check_alive()
                raise
            return self._finish(control, claim, worker, heartbeat, outcome)
        except StaleAttempt as error:
            log.warning(
                "writeback_stale_attempt",
                job=str(claim.job_id),
                attempt=claim.attempt_id,
                error=error.message,
            )
            return RunReport(claim.job_id, "stale", outcome)
        except CommitUnknown:
            # Whether the load is in is not known, so nobody may call the job failed.
            raise
        except psycopg.Error as error:
            found = translate(error, f"sync {sync.name}")
            self._fail(control, claim, destination, found)
            raise found from error
        except Exception as error:
            self._fail(control, claim, destination, error)
            raise
        finally:
            heartbeat.stop()
            heartbeat.connection.close()

    def _finish(
        self,
        control: Connection,
        claim: Claim,
        worker: Worker,
        heartbeat: Heartbeat,
        outcome: SyncOutcome,
    ) -> RunReport:
        heartbeat.check_alive()
        won = self._jobs.finish(
            control, claim, JobStatus.DONE, actor=self._actor, result=_result(outcome)
        )
        if not won:
            raise StaleAttempt(f"the attempt {claim.attempt_id} was replaced by another")
        reach("job.finished")
        Workers(self._context.plane).forget(control, worker)
        return RunReport(claim.job_id, "done", outcome)

    def _fail(
        self,
        control: Connection,
        claim: Claim,
        destination: PostgresDestination,
        error: BaseException,
    ) -> None:
        """Say so in the history; what cannot be said now is found out by the next run."""
        with suppress(psycopg.Error, TidegateError):
            destination.discard(claim.attempt_id)
        with suppress(psycopg.Error):
            self._jobs.finish(control, claim, JobStatus.FAILED, actor=self._actor, error=str(error))

    def _interrupt_spark(self) -> None:
        if self._context.spark.started:
            with suppress(Exception):
                self._context.spark.get().interruptAll()

    def _take_over(self, destination: PostgresDestination, control_id: UUID) -> None:
        destination.ledger.ensure()
        with destination.open() as connection:
            destination.fences.seize(connection, str(destination.relation), control_id)

    def _destination_of(
        self, dead: DeadAttempt, resource: str, destination: PostgresDestination
    ) -> PostgresDestination | None:
        if dead.resource == resource:
            return destination
        return self._context.destination(Endpoint.parse(dead.payload["target"]))


def _result(outcome: SyncOutcome) -> dict[str, Any]:
    horizon = None if outcome.horizon is None else asdict(outcome.horizon)
    return {
        "loads": len(outcome.loads),
        "rows": outcome.rows,
        "changed": outcome.changed,
        "found_nothing": not outcome.loads,
        "watermark": outcome.watermark.value if outcome.watermark else None,
        "horizon": json.loads(json.dumps(horizon, default=str)),
        "fingerprints": outcome.fingerprints,
    }
