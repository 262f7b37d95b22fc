"""One attempt: fence, heartbeat, work, one terminal state."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from tidegate.core.errors import CommitUnknown, ConnectionFailed, StaleAttempt, TidegateError, words
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.core.relation import Endpoint
from tidegate.jobs.claim import Claimed, claim_table, open_heartbeat, table_resource
from tidegate.jobs.context import JobContext
from tidegate.jobs.control_database import ControlDatabase, Tokens
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.history.writer import record_end, record_start
from tidegate.jobs.job import MAINTENANCE, Claim, JobRequest, JobStatus
from tidegate.jobs.lease import Lease
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import tell_restored
from tidegate.jobs.shutdown import release_job
from tidegate.jobs.worker_records import user_name
from tidegate.ledger.fences import Fence, FencedTable, FenceTooLow
from tidegate.postgres.connection import Connection, session_lost, translate

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.25


@dataclass(slots=True)
class AttemptSession:
    """A session of one attempt; a lost one is opened again for as long as the lease lasts.

    What the attempt has published must not be called an error because a session was lost after.
    """

    plane: ControlDatabase
    connection: Connection
    heartbeat: Heartbeat
    lease: Lease

    def write(self, write: Callable[[Connection], Answer]) -> Answer:
        """Write, perhaps twice: the first answer may have been lost, but not its effect."""
        while True:
            try:
                with self.heartbeat.answered_soon(self.connection):
                    return write(self.connection)
            except psycopg.Error as error:
                if not session_lost(error):
                    raise
                log.warning("control_session_lost", error=str(error).splitlines()[0])
            self._open_again()

    def _open_again(self) -> None:
        self.connection.close()
        while self.connection.closed:
            self.lease.check_alive()
            with suppress(ConnectionFailed):
                self.connection = self.plane.connect()
                return
            time.sleep(_PAUSE_SECONDS)


@dataclass(slots=True)
class LiveAttempt:
    """What the work may ask of the attempt it runs under."""

    jobs: Jobs
    control: AttemptSession
    claim: Claim
    lease: Lease
    fence: Fence
    actor: str
    _plan: dict[str, Any] | None = None

    @property
    def stored_plan(self) -> dict[str, Any] | None:
        """The plan that was stored last, by this attempt or the one before."""
        return self.claim.plan if self._plan is None else self._plan

    def store_plan(self, plan: dict[str, Any] | None) -> None:
        self._require(
            self.control.write(lambda control: self.jobs.store_plan(control, self.claim, plan))
        )
        self._plan = plan

    def report(self, progress: dict[str, Any]) -> None:
        """Say what is being done now, for whoever watches."""
        self._require(
            self.control.write(
                lambda control: self.jobs.record_progress(control, self.claim, progress)
            )
        )

    def record(self, action: str, detail: dict[str, Any]) -> None:
        """Keep a step that is done, for whoever watches or asks later."""
        self._require(
            self.control.write(
                lambda control: self.jobs.record_action(control, self.claim, action, detail)
            )
        )

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """A short question to the control database, over the attempt's own session."""
        return self.control.write(question)

    def remaining_seconds(self) -> float:
        return self.lease.remaining_seconds()

    def check_alive(self) -> None:
        self.lease.check_alive()

    def _require(self, written: bool) -> None:
        if not written:
            raise StaleAttempt(f"the attempt {self.claim.attempt_id} was replaced by another")


def raise_fence(
    destination: FencedTable,
    tokens: Tokens,
    connection: Connection,
    claim: Claim,
    control_id: UUID,
) -> Fence:
    """Take the destination table for this attempt.

    A destination that has seen a higher token, while the control database still holds this
    attempt to be current, means that the control database is older: it was restored. Its tokens
    are lifted above the destination's.
    """
    fence = Fence(str(destination.relation), control_id, claim.fence, claim.attempt_id)
    try:
        destination.raise_fence(fence)
    except FenceTooLow as error:
        restored = not tokens.has_issued(connection, error.token)
        token = tokens.reissue(connection, claim, error.token)
        if token is None:
            raise
        if restored:
            tell_restored(connection, fence, seen=error.token, lifted_to=token)
        fence = Fence(fence.resource, control_id, token, claim.attempt_id)
        destination.raise_fence(fence)
    reach("fence.raised")
    return fence


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """A job of ours, and what it takes to end it well; `interrupt` stops its Spark work.

    A job without a destination publishes nothing and raises no fence. `ended` writes what belongs
    to its end, in the same transaction. With `retries` an error puts the job back into the queue,
    as long as it has attempts left and trying again could help.
    """

    context: JobContext
    control: Connection
    destination: FencedTable | None
    claimed: Claimed
    actor: str
    what: str
    interrupt: Callable[[], None]
    retries: bool = False
    retry_delay_seconds: float | None = None
    """how long an error puts it off; by default ever longer"""
    ended: Callable[[Connection], object] | None = None

    def run(self, work: Callable[[LiveAttempt], dict[str, Any]]) -> bool:
        """Do the work as a fenced attempt; False when another attempt took over.

        `work` returns what is kept of it in the history.
        """
        maintains = self.claimed.claim.kind == MAINTENANCE
        try:
            won = self._run(work)
        except Exception:
            if maintains:
                # Some of its actions may have gone well.
                self._note_written(anew=True)
            raise
        if won:
            self._note_written(anew=maintains)
        return won

    def _run(self, work: Callable[[LiveAttempt], dict[str, Any]]) -> bool:
        claim = self.claimed.claim
        heartbeat = self.claimed.heartbeat
        lease = heartbeat.hold(
            claim, since=self.claimed.since, interrupt=self.interrupt, leave=self._leave
        )
        control = AttemptSession(self.context.plane, self.control, heartbeat, lease)
        with heartbeat.answered_soon(control.connection):
            record_start(self.context, control.connection, claim)
        try:
            try:
                fence = control.write(self._raise_fence)
                if self.destination is not None:
                    self.destination.heal(fence)
                result = work(LiveAttempt(self._jobs, control, claim, lease, fence, self.actor))
                lease.check_alive()
                lease.settle()
                self._finish(control, result)
                with heartbeat.answered_soon(control.connection):
                    record_end(self.context, control.connection, claim)
            except Exception:
                # Interrupted Spark work fails in many ways; the reason is that we were replaced.
                lease.check_alive()
                raise
            return True
        except StaleAttempt as error:
            log.warning(
                "writeback_stale_attempt",
                job=str(claim.job_id),
                attempt=claim.attempt_id,
                error=error.message,
            )
            return False
        except CommitUnknown:
            # Whether the load is in is not known, so nobody may call the job failed.
            raise
        except psycopg.Error as error:
            found = translate(error, self.what)
            lease.settle()
            self._fail(found)
            raise found from error
        except Exception as error:
            lease.settle()
            self._fail(error)
            raise
        finally:
            heartbeat.drop(lease)
            if control.connection is not self.control:
                control.connection.close()

    def _note_written(self, *, anew: bool) -> None:
        if self.destination is not None:
            self.context.table_written(self.control, self.destination, anew=anew)

    def _raise_fence(self, control: Connection) -> Fence:
        claim, control_id = self.claimed.claim, self.context.control_id()
        if self.destination is None:
            return Fence(str(claim.resource), control_id, claim.fence, claim.attempt_id)
        return raise_fence(self.destination, Tokens(self.context.plane), control, claim, control_id)

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self.context.plane)

    def _finish(self, control: AttemptSession, result: dict[str, Any]) -> None:
        claim = self.claimed.claim
        reach("job.finishing")

        def finish(session: Connection) -> bool:
            with nullcontext() if self.ended is None else session.transaction():
                won = self._jobs.finish(
                    session, claim, JobStatus.DONE, actor=self.actor, result=result
                )
                if won and self.ended is not None:
                    self.ended(session)
            return won

        won = control.write(
            lambda session: (
                finish(session)
                # Or it was done, and the answer was lost.
                or self._jobs.outcome(session, claim) == JobStatus.DONE
            )
        )
        if not won:
            raise StaleAttempt(f"the attempt {claim.attempt_id} was replaced by another")
        reach("job.finished")

    def _fail(self, error: Exception) -> None:
        """Say so in the history; what cannot be said now is found out by the next run."""
        claim = self.claimed.claim
        with suppress(psycopg.Error, TidegateError):
            if self.destination is not None:
                self.destination.discard(claim.attempt_id)
        with suppress(psycopg.Error):
            if self.retries and may_be_retried(error, claim.error_count, claim.max_attempts):
                backoff = self.context.settings.worker.backoff
                wait = self.retry_delay_seconds
                if wait is None:
                    wait = backoff.seconds(claim.error_count + 1, random.random())
                self._jobs.give_back(
                    self.control,
                    claim,
                    actor=self.actor,
                    error=words(error),
                    delay_seconds=wait,
                )
            else:
                self._jobs.finish(
                    self.control, claim, JobStatus.FAILED, actor=self.actor, error=words(error)
                )
        record_end(self.context, self.control, claim, error)

    def _leave(self, reason: str) -> bool:
        return release_job(self.context, self.claimed.claim, actor=self.actor, reason=reason)


def may_be_retried(error: Exception, error_count: int, max_attempts: int) -> bool:
    """Whether trying again is allowed, and could help."""
    if isinstance(error, CommitUnknown):
        return True  # it may be published, so nobody may call it failed
    permanent = isinstance(error, TidegateError) and error.permanent
    return not permanent and error_count + 1 < max_attempts


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
