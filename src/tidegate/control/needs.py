"""Jobs that wait for others: released when those are done, ended when they are not to be."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidegate.control.plane import ControlPlane
from tidegate.failpoints import reach
from tidegate.model.job import JobStatus
from tidegate.postgres.connect import Connection

ACTOR = "dispatch"
_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Settled:
    """How many jobs may run now, and how many ended because of what they need."""

    released: int = 0
    failed: int = 0

    def __add__(self, other: Settled) -> Settled:
        return Settled(self.released + other.released, self.failed + other.failed)


@dataclass(frozen=True, slots=True)
class Needs:
    """Who waits for whom; any number may settle at the same time, and again after a crash."""

    plane: ControlPlane

    def settle(self, connection: Connection, job_id: UUID, *, actor: str = ACTOR) -> Settled:
        """Tell those who wait for a job how it ended, and those who wait for them in turn."""
        done, ended = Settled(), [job_id]
        while ended:
            reach("job.settling")
            with connection.transaction():
                released, failed = self._settle(connection, ended.pop(), actor)
            done += Settled(released, len(failed))
            ended += failed
        return done

    def settle_all(self, connection: Connection, *, actor: str = ACTOR) -> Settled:
        """The same for every job that ended without anybody being told."""
        done = Settled()
        while True:
            rows = connection.execute(
                self.plane.statement("job_needs", "list_unsettled"), {"limit": _AT_A_TIME}
            ).fetchall()
            for (job_id,) in rows:
                done += self.settle(connection, job_id, actor=actor)
            if len(rows) < _AT_A_TIME:
                break
        freed = connection.execute(
            self.plane.statement("job_needs", "release_forgotten"),
            {"channel": self.plane.channel("jobs")},
        )
        return done + Settled(len(freed.fetchall()))

    def of(self, connection: Connection, job_id: UUID) -> list[tuple[UUID, str | None, str | None]]:
        """What a job still waits for: each one's id, name and status."""
        rows = connection.execute(
            self.plane.statement("job_needs", "list_needs"), {"job_id": job_id}
        )
        return rows.fetchall()

    def _settle(self, connection: Connection, job_id: UUID, actor: str) -> tuple[int, list[UUID]]:
        """One job's; each step sees what the others did before we had the rows locked."""
        wanted = {"job_id": job_id}
        rows = connection.execute(self.plane.statement("job_needs", "lock_waiting"), wanted)
        waiting = [row[0] for row in rows]
        row = connection.execute(self.plane.statement("job_needs", "how_ended"), wanted).fetchone()
        status, name = (JobStatus(row[0]), row[1]) if row else (JobStatus.FAILED, str(job_id))
        if not status.is_terminal:
            return 0, []
        if status is JobStatus.DONE:
            connection.execute(self.plane.statement("job_needs", "meet_need"), wanted)
            freed = connection.execute(
                self.plane.statement("job_needs", "release_ready"),
                {"job_ids": waiting, "channel": self.plane.channel("jobs")},
            )
            return len(freed.fetchall()), []
        word = "was cancelled" if status is JobStatus.CANCELLED else "failed"
        failed = connection.execute(
            self.plane.statement("job_needs", "fail_waiting"),
            {"job_ids": waiting, "error": f"requires {name}, which {word}", "actor": actor},
        ).fetchall()
        connection.execute(self.plane.statement("job_needs", "meet_need"), wanted)
        return 0, [one[0] for one in failed]
