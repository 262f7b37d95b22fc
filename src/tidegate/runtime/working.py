"""Working a claimed job to its end: heartbeat, fence, the work, and one terminal state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidegate.control.jobs import Jobs
from tidegate.control.workers import Workers
from tidegate.destinations.postgres import PostgresDestination
from tidegate.errors import CommitUnknown, StaleAttempt, TidegateError
from tidegate.failpoints import reach
from tidegate.log import log
from tidegate.model.job import JobStatus
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection, translate
from tidegate.runtime.attempt import LiveAttempt, raise_fence
from tidegate.runtime.claiming import Claimed
from tidegate.runtime.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """A job of ours, and what it takes to end it well; `interrupt` stops its Spark work."""

    context: Context
    control: Connection
    destination: PostgresDestination
    claimed: Claimed
    actor: str
    what: str
    interrupt: Callable[[], None]

    def run(self, work: Callable[[LiveAttempt], dict[str, Any]]) -> bool:
        """Do the work as a fenced attempt; False when another attempt took over.

        `work` returns what is kept of it in the history.
        """
        settings, claim = self.context.settings.worker, self.claimed.claim
        heartbeat = Heartbeat(
            self.claimed.session,
            self._jobs,
            self.claimed.worker,
            claim,
            lease_seconds=settings.lease_seconds,
            interval_seconds=settings.heartbeat_seconds,
            interrupt=self.interrupt,
        )
        heartbeat.start()
        try:
            fence = raise_fence(
                self.destination, self._jobs, self.control, claim, self.context.control_id()
            )
            attempt = LiveAttempt(self._jobs, self.control, claim, heartbeat, fence, self.actor)
            try:
                result = work(attempt)
            except Exception:
                # Interrupted Spark work fails in many ways; the reason is that we were replaced.
                heartbeat.check_alive()
                raise
            self._finish(heartbeat, result)
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
            self._fail(found)
            raise found from error
        except Exception as error:
            self._fail(error)
            raise
        finally:
            heartbeat.stop()
            heartbeat.connection.close()

    @property
    def _jobs(self) -> Jobs:
        return Jobs(self.context.plane)

    def _finish(self, heartbeat: Heartbeat, result: dict[str, Any]) -> None:
        claim = self.claimed.claim
        heartbeat.check_alive()
        won = self._jobs.finish(
            self.control, claim, JobStatus.DONE, actor=self.actor, result=result
        )
        if not won:
            raise StaleAttempt(f"the attempt {claim.attempt_id} was replaced by another")
        reach("job.finished")
        Workers(self.context.plane).forget(self.control, self.claimed.worker)

    def _fail(self, error: BaseException) -> None:
        """Say so in the history; what cannot be said now is found out by the next run."""
        claim = self.claimed.claim
        with suppress(psycopg.Error, TidegateError):
            self.destination.discard(claim.attempt_id)
        with suppress(psycopg.Error):
            self._jobs.finish(
                self.control, claim, JobStatus.FAILED, actor=self.actor, error=str(error)
            )
