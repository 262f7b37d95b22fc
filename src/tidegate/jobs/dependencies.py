"""Jobs and limited resources that a job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tidegate.core.failpoints import reach
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import JobStatus
from tidegate.postgres.connection import Connection

ACTOR = "dispatch"
_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class SettledJobs:
    """How many jobs may run now, and how many ended because of what they need."""

    released: int = 0
    failed: int = 0

    def __add__(self, other: SettledJobs) -> SettledJobs:
        return SettledJobs(self.released + other.released, self.failed + other.failed)


@dataclass(frozen=True, slots=True)
class Needs:
    """Who waits for whom; any number may settle at the same time, and again after a crash."""

    plane: ControlDatabase

    def settle(self, connection: Connection, job_id: UUID, *, actor: str = ACTOR) -> SettledJobs:
        """Tell those who wait for a job how it ended, and those who wait for them in turn."""
        done, ended = SettledJobs(), [job_id]
        while ended:
            reach("job.settling")
            with connection.transaction():
                released, failed = self._settle(connection, ended.pop(), actor)
            done += SettledJobs(released, len(failed))
            ended += failed
        return done

    def settle_all(self, connection: Connection, *, actor: str = ACTOR) -> SettledJobs:
        """The same for every job that ended without anybody being told."""
        done = SettledJobs()
        while True:
            rows = connection.execute(
                self.plane.statement("jobs/job_needs", "list_unsettled"), {"limit": _AT_A_TIME}
            ).fetchall()
            for (job_id,) in rows:
                done += self.settle(connection, job_id, actor=actor)
            if len(rows) < _AT_A_TIME:
                break
        freed = connection.execute(
            self.plane.statement("jobs/job_needs", "release_forgotten"),
            {"channel": self.plane.channel("jobs")},
        )
        return done + SettledJobs(len(freed.fetchall()))

    def of(self, connection: Connection, job_id: UUID) -> list[tuple[UUID, str | None, str | None]]:
        """What a job still waits for: each one's id, name and status."""
        rows = connection.execute(
            self.plane.statement("jobs/job_needs", "list_needs"), {"job_id": job_id}
        )
        return rows.fetchall()

    def _settle(self, connection: Connection, job_id: UUID, actor: str) -> tuple[int, list[UUID]]:
        """One job's; each step sees what the others did before we had the rows locked."""
        wanted = {"job_id": job_id}
        rows = connection.execute(self.plane.statement("jobs/job_needs", "lock_waiting"), wanted)
        waiting = [row[0] for row in rows]
        row = connection.execute(
            self.plane.statement("jobs/job_needs", "how_ended"), wanted
        ).fetchone()
        status, name = (JobStatus(row[0]), row[1]) if row else (JobStatus.FAILED, str(job_id))
        if not status.is_terminal:
            return 0, []
        if status is JobStatus.DONE:
            connection.execute(self.plane.statement("jobs/job_needs", "meet_need"), wanted)
            freed = connection.execute(
                self.plane.statement("jobs/job_needs", "release_ready"),
                {"job_ids": waiting, "channel": self.plane.channel("jobs")},
            )
            return len(freed.fetchall()), []
        word = "was cancelled" if status is JobStatus.CANCELLED else "failed"
        failed = connection.execute(
            self.plane.statement("jobs/job_needs", "fail_waiting"),
            {"job_ids": waiting, "error": f"requires {name}, which {word}", "actor": actor},
        ).fetchall()
        connection.execute(self.plane.statement("jobs/job_needs", "meet_need"), wanted)
        return 0, [one[0] for one in failed]


_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"


@dataclass(frozen=True, slots=True)
class Limits:
    """The named resources of one project."""

    plane: ControlDatabase
    project: str

    def declare(self, connection: Connection, places: Mapping[str, int]) -> None:
        """How many places each has now; what is not among them has one."""
        named = {"project": self.project, "names": list(places)}
        with connection.transaction():
            connection.execute(self.plane.statement("jobs/job_needs", "forget_limits"), named)
            connection.execute(
                self.plane.statement("jobs/job_needs", "set_limits"),
                named | {"places": list(places.values())},
            )

    def lock(self, connection: Connection, names: Sequence[str]) -> None:
        """Be alone in counting these until the end of the transaction, which must be soon."""
        connection.execute(_PATIENCE)
        keys = [f"tidegate:{self.plane.schema}:limit:{self.project}:{name}" for name in names]
        connection.execute(self.plane.statement("jobs/job_needs", "lock_limits"), {"keys": keys})
