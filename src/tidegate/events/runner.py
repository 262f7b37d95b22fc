"""The phases as jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from typing import Any
from uuid import UUID

import psycopg

from tidegate.core.cron import Schedule
from tidegate.core.errors import BusyError, ControlMismatch, StaleAttempt, TidegateError, UsageError
from tidegate.core.failpoints import reach
from tidegate.core.relation import MAX_NAME_BYTES, Endpoint, Relation
from tidegate.events.model import PHASES, SCHEDULED_NAME, Phase, Processed
from tidegate.events.process import process
from tidegate.events.project_events import ProjectEvents, find_events
from tidegate.events.provision import Provisioned, provision
from tidegate.events.refresh import RefreshEnd, refresh, refuse_failed
from tidegate.events.tables import ensure_tables
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import Claimed, claim_table, table_resource
from tidegate.jobs.drain import refuse_draining
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import EVENT, Claim, JobRequest, LockAt, Submitted
from tidegate.jobs.lease import now
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.scheduler import Enqueue, Enqueued, Prepare
from tidegate.jobs.schedules import Scheduled, TickOutcome
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, cut, translate

COMMAND = "tidegate event run"


def phase_target(events: ProjectEvents, phase: Phase) -> Endpoint | None:
    """What a phase locks and fences, beside the facts; the second holds the rows it claimed."""
    if phase is Phase.PROCESS:
        return None
    suffix = f"/{phase}"
    kept = events.model.facts.name.encode()[: MAX_NAME_BYTES - len(suffix)]
    name = kept.decode(errors="ignore") + suffix
    return Endpoint(events.connection, Relation(events.model.facts.schema, name))


def event_request(
    context: Context, events: ProjectEvents, phase: Phase, *, payload: dict[str, Any] | None = None
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


_POLL_SECONDS = 0.25


@dataclass(slots=True)
class EventReport:
    """What a run of the phases came to; a phase that was not asked for is None."""

    provisioned: Provisioned | None = None
    processed: Processed | None = None
    refreshed: list[RefreshEnd] | None = None
    error: TidegateError | None = None
    """of views that could not be filled, after all else was done"""
    jobs: dict[str, UUID] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How the phases are to be run."""

    budget_seconds: float | None = None
    force_refresh: bool = False
    take_over: bool = False


class EventRunner:
    """Runs phases of a project's events, each as an attempt at a job of its own."""

    def __init__(
        self,
        context: Context,
        heartbeat: Heartbeat,
        *,
        ended: Callable[[Phase, EventReport], None] = lambda _, __: None,
    ) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._ended = ended
        self._events = find_events(context)
        self._actor = f"{user_name()} ({heartbeat.worker.command})"

    def run(
        self, phases: Sequence[Phase] = PHASES, options: EventOptions | None = None
    ) -> EventReport:
        """Submit, claim and work each phase; where another has one, it is waited for, a while."""
        report, options = EventReport(), options or EventOptions()
        self._context.control_id()  # so that there is a control plane to connect to
        for phase in phases:
            try:
                with self._heartbeat.sessions.borrow() as control:
                    claimed = self._claim(control, phase, options)
                    report.jobs[phase.value] = claimed.claim.job_id
                    self._work(phase, control, claimed, report, options)
            except psycopg.Error as error:
                raise translate(error, phase.job_name) from error
            self._ended(phase, report)
        return report

    def work(self, claimed: Claimed) -> bool:
        """Work a job that was claimed from the queue; after an error it is put back there."""
        phase = read_phase(claimed.claim.name, claimed.claim.payload)
        report = EventReport()
        with self._heartbeat.sessions.borrow() as control:
            won = self._attempt(phase, control, claimed, report, EventOptions(), retries=True)
        if report.error is not None:
            raise report.error
        return won

    def _claim(self, control: Connection, phase: Phase, options: EventOptions) -> Claimed:
        """A job of our own; BusyError names who has the phase for longer than we wait."""
        events = self._events
        target = phase_target(events, phase)
        request = event_request(
            self._context, events, phase, payload={"command": f"{COMMAND} --phase {phase}"}
        )
        if target is None:
            return self._claim_free(control, request)
        deadline = time.monotonic() + events.settings.time_budget_seconds
        while True:
            refuse_draining(self._context.plane, control)
            try:
                return claim_table(
                    self._context,
                    control,
                    self._context.destination(target),
                    target,
                    request,
                    self._heartbeat,
                    actor=self._actor,
                    take_over=options.take_over,
                )
            except BusyError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _claim_free(self, control: Connection, request: JobRequest) -> Claimed:
        """A job that locks nothing: one that was left by a process like this, or a new one."""
        plane, jobs = self._context.plane, Jobs(self._context.plane)
        for dead in LostAttempts(plane).list(control, project=request.project):
            if dead.kind == EVENT and dead.payload == request.payload:
                LostAttempts(plane).reclaim(control, dead, self._actor)
        self._heartbeat.join()
        since = now()
        for job_id in jobs.waiting_like(control, request):
            claim = self._claim_job(control, job_id)
            if claim is not None:
                return Claimed(claim, self._heartbeat, since)
        with control.transaction():
            control.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
            submitted = jobs.submit(control, request, self._actor, announce=False)
            if submitted.job_id is None:
                refuse_draining(plane, control)
                raise BusyError(f"{request.name} was not begun: {submitted.outcome}", "try again")
            reach("job.submitted")
            claim = self._claim_job(control, submitted.job_id)
            assert claim is not None
        reach("job.claimed")
        return Claimed(claim, self._heartbeat, since)

    def _claim_job(self, control: Connection, job_id: UUID) -> Claim | None:
        return Jobs(self._context.plane).claim(
            control,
            self._heartbeat.worker.worker_id,
            job_id,
            lease_seconds=self._heartbeat.lease_seconds,
        )

    def _work(
        self,
        phase: Phase,
        control: Connection,
        claimed: Claimed,
        report: EventReport,
        options: EventOptions,
    ) -> None:
        try:
            won = self._attempt(phase, control, claimed, report, options, retries=False)
        except ControlMismatch as error:
            raise ControlMismatch(
                error.message,
                "stop that one first, then take its events over with: "
                "tidegate event run --take-over",
            ) from error
        except TidegateError as error:
            if error is not report.error:
                raise
            return  # of some views; the others were filled
        if not won:
            raise StaleAttempt(
                f"{phase.job_name} was taken over by another process, or cancelled",
                "run it again: what is committed is not done again",
            )

    def _attempt(
        self,
        phase: Phase,
        control: Connection,
        claimed: Claimed,
        report: EventReport,
        options: EventOptions,
        *,
        retries: bool,
    ) -> bool:
        context, attempt_id = self._context, claimed.claim.attempt_id
        target = phase_target(self._events, phase)
        sessions: list[Connection] = []

        def interrupt() -> None:
            context.spark.interrupt(attempt_id)
            for one in sessions:
                cut(one)

        def work(attempt: LiveAttempt) -> dict[str, Any]:
            if phase is Phase.PROCESS:
                return self._process(attempt, report, options)
            with self._session(sessions) as connection:
                if phase is Phase.PROVISION:
                    report.provisioned = provision(context, self._events, connection)
                    return _plain(report.provisioned)
                ensure_tables(connection, self._events)
                report.refreshed = refresh(
                    context,
                    self._events,
                    connection,
                    force=options.force_refresh,
                    check_alive=attempt.check_alive,
                )
            try:
                refuse_failed(report.refreshed)
            except TidegateError as error:
                report.error = error
                raise
            return {"views": [_plain(one) for one in report.refreshed]}

        return ClaimedWork(
            context=context,
            control=control,
            destination=None if target is None else context.destination(target),
            claimed=claimed,
            actor=self._actor,
            what=phase.job_name,
            interrupt=interrupt,
            retries=retries,
        ).run(work)

    def _process(
        self, attempt: LiveAttempt, report: EventReport, options: EventOptions
    ) -> dict[str, Any]:
        context, events = self._context, self._events
        with self._session([]) as connection:
            ensure_tables(connection, events)
        facts = Endpoint(events.connection, events.model.facts)
        context.destination(facts).sweep(lambda: attempt.ask(attempt.jobs.live_attempts))

        def provide(months: Collection[date]) -> None:
            # Any number may make partitions at once, so that nobody's lock is waited for.
            with self._session([]) as connection:
                provision(context, events, connection, months=months)

        seconds = options.budget_seconds
        report.processed = process(
            context,
            events,
            attempt_id=attempt.claim.attempt_id,
            budget_seconds=events.settings.time_budget_seconds if seconds is None else seconds,
            check_alive=attempt.check_alive,
            provision=provide,
        )
        return _plain(report.processed)

    @contextmanager
    def _session(self, sessions: list[Connection]) -> Iterator[Connection]:
        """A session of its own for a phase, which can be cut from elsewhere."""
        with self._context.databases.connect(self._events.connection) as connection:
            sessions.append(connection)
            try:
                yield connection
            finally:
                sessions.remove(connection)


def _plain(value: Any) -> dict[str, Any]:
    """A report as the history keeps it."""
    return {
        name: [str(one) for one in part] if isinstance(part, list) else part
        for name, part in asdict(value).items()
    }
