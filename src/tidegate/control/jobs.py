"""Jobs in the control database: submit, claim, beat, finish, reclaim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from psycopg import errors as pg
from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.model.identity import new_attempt_id
from tidegate.model.job import Claim, Holder, JobRequest, JobStatus
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class DeadAttempt:
    """An attempt whose worker is gone or whose lease ran out."""

    job_id: UUID
    attempt_id: str
    resource: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecentJob:
    """The latest job of a sync, for status."""

    name: str
    job_id: UUID
    status: JobStatus
    error: str | None
    result: dict[str, Any] | None
    submitted_at: Any
    finished_at: Any


@dataclass(frozen=True, slots=True)
class Jobs:
    """The job store; every method is one transaction on the given session."""

    plane: ControlPlane

    def submit(self, connection: Connection, request: JobRequest, actor: str) -> UUID | None:
        """Queue a job and lock its resource; None when the resource is taken."""
        try:
            row = connection.execute(
                self.plane.statement("jobs", "submit_job"),
                {
                    "job_id": uuid4(),
                    "project": request.project,
                    "kind": request.kind,
                    "name": request.name,
                    "resource": request.resource,
                    "payload": Jsonb(request.payload),
                    "max_attempts": request.max_attempts,
                    "actor": actor,
                },
            ).fetchone()
        except pg.UniqueViolation:
            return None
        return row[0] if row else None

    def claim(
        self,
        connection: Connection,
        worker_id: str,
        *,
        lease_seconds: float,
        job_id: UUID | None = None,
    ) -> Claim | None:
        """Start a new attempt at one job, or at the most urgent one."""
        row = connection.execute(
            self.plane.statement("jobs", "claim_job"),
            {
                "job_id": job_id,
                "worker_id": worker_id,
                "attempt_id": new_attempt_id(),
                "lease": lease_seconds,
                "sequence": self.plane.sequence,
            },
        ).fetchone()
        return Claim(*row) if row else None

    def beat(self, connection: Connection, claim: Claim, lease_seconds: float) -> bool:
        """Renew the lease; False when the attempt is not ours any more."""
        row = connection.execute(
            self.plane.statement("job_queue", "beat"),
            {"job_id": claim.job_id, "attempt_id": claim.attempt_id, "lease": lease_seconds},
        ).fetchone()
        return row is not None

    def store_plan(self, connection: Connection, claim: Claim, plan: dict[str, Any] | None) -> bool:
        """Keep the plan of the load under way; False when the attempt is stale."""
        return (
            connection.execute(
                self.plane.statement("jobs", "store_plan"),
                {
                    "job_id": claim.job_id,
                    "attempt_id": claim.attempt_id,
                    "plan": None if plan is None else Jsonb(plan),
                },
            ).rowcount
            == 1
        )

    def finish(
        self,
        connection: Connection,
        claim: Claim,
        status: JobStatus,
        *,
        actor: str,
        error: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> bool:
        """Write the terminal state; says whether this attempt was the one to do so."""
        row = connection.execute(
            self.plane.statement("jobs", "finish_job"),
            {
                "job_id": claim.job_id,
                "attempt_id": claim.attempt_id,
                "status": status.value,
                "error": error,
                "result": None if result is None else Jsonb(result),
                "actor": actor,
            },
        ).fetchone()
        return row is not None

    def holder(self, connection: Connection, resource: str) -> Holder | None:
        """Who holds a resource."""
        row = connection.execute(
            self.plane.statement("table_locks", "get_holder"), {"resource": resource}
        ).fetchone()
        if row is None:
            return None
        return Holder(row[0], row[1], JobStatus(row[2]), *row[3:])

    def list_dead(self, connection: Connection, resource: str | None = None) -> list[DeadAttempt]:
        rows = connection.execute(
            self.plane.statement("job_queue", "list_dead"), {"resource": resource}
        )
        return [DeadAttempt(*row) for row in rows]

    def reclaim(self, connection: Connection, dead: DeadAttempt, actor: str) -> bool:
        """Put a dead attempt's job back; False when it turned out not to be dead."""
        row = connection.execute(
            self.plane.statement("job_queue", "reclaim"),
            {"job_id": dead.job_id, "attempt_id": dead.attempt_id, "actor": actor},
        ).fetchone()
        return row is not None

    def drop_pending(self, connection: Connection, job_id: UUID, actor: str, reason: str) -> bool:
        """Give up a job that nobody works on."""
        row = connection.execute(
            self.plane.statement("jobs", "drop_pending"),
            {"job_id": job_id, "actor": actor, "reason": reason},
        ).fetchone()
        return row is not None

    def next_token(self, connection: Connection) -> int:
        row = connection.execute(
            self.plane.statement("job_queue", "next_token"), {"sequence": self.plane.sequence}
        ).fetchone()
        assert row is not None
        return int(row[0])

    def reissue_fence(self, connection: Connection, claim: Claim, above: int) -> int | None:
        """A token above one seen in a destination; None when the attempt is stale."""
        connection.execute(
            self.plane.statement("job_queue", "reseed_tokens"),
            {"sequence": self.plane.sequence, "token": above},
        )
        row = connection.execute(
            self.plane.statement("job_queue", "reissue_fence"),
            {
                "sequence": self.plane.sequence,
                "job_id": claim.job_id,
                "attempt_id": claim.attempt_id,
            },
        ).fetchone()
        return int(row[0]) if row else None

    def live_attempts(self, connection: Connection) -> set[str]:
        """Attempts that hold a job now."""
        rows = connection.execute(self.plane.statement("job_queue", "live_attempts"), {})
        return {row[0] for row in rows}

    def recent(self, connection: Connection, project: str, kind: str) -> dict[str, RecentJob]:
        rows = connection.execute(
            self.plane.statement("jobs", "recent_jobs"), {"project": project, "kind": kind}
        )
        return {row[0]: RecentJob(row[0], row[1], JobStatus(row[2]), *row[3:]) for row in rows}

    def last_result(
        self, connection: Connection, project: str, kind: str, name: str
    ) -> dict[str, Any]:
        """What the latest successful job of this name left, or nothing."""
        row = connection.execute(
            self.plane.statement("jobs", "last_result"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return dict(row[0]) if row and row[0] else {}

    def last_target(self, connection: Connection, project: str, kind: str, name: str) -> str | None:
        """Where the latest successful job of this name loaded into."""
        row = connection.execute(
            self.plane.statement("jobs", "last_target"),
            {"project": project, "kind": kind, "name": name},
        ).fetchone()
        return row[0] if row else None
