"""Working a claimed job to its end: heartbeat, fence, the work, and one terminal state."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidegate.control.jobs import Jobs
from tidegate.control.tokens import Tokens
from tidegate.errors import (
    CommitUnknown,
    StaleAttempt,
    TidegateError,
    words,
)
from tidegate.failpoints import reach
from tidegate.ledger.fences import Fence, FencedTable
from tidegate.log import log
from tidegate.model.job import MAINTENANCE, JobStatus
from tidegate.postgres.connect import Connection, translate
from tidegate.runtime.attempt import LiveAttempt, raise_fence
from tidegate.runtime.attempt_session import AttemptSession
from tidegate.runtime.claiming import Claimed
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.leaving import leave_job
from tidegate.runtime.recording import record_end, record_start


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
        return leave_job(self.context, self.claimed.claim, actor=self.actor, reason=reason)


def may_be_retried(error: Exception, error_count: int, max_attempts: int) -> bool:
    """Whether trying again is allowed, and could help."""
    if isinstance(error, CommitUnknown):
        return True  # it may be published, so nobody may call it failed
    permanent = isinstance(error, TidegateError) and error.permanent
    return not permanent and error_count + 1 < max_attempts
