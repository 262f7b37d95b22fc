"""Jobs in the control database, from submission to their end; every method is one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from tidegate.core.errors import BusyError, KeyReused, UsageError
from tidegate.core.identity import new_job_id
from tidegate.core.log import log
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.dependencies import Limits, Needs
from tidegate.jobs.job import (
    Claim,
    Ending,
    Holder,
    JobRequest,
    JobStatus,
    Submission,
    Submitted,
    UnknownAttempt,
)
from tidegate.postgres.connection import Connection, first_line

_CLAIM_TRIES = 5


@dataclass(frozen=True, slots=True)
class Jobs:
    """The job store: whoever holds an attempt may write, and nobody else."""

    plane: ControlDatabase

    def submit(
        self, connection: Connection, request: JobRequest, actor: str, *, announce: bool = True
    ) -> Submission:
        """Queue a job, wake the workers, and say what became of it.

        One that is claimed in the same transaction need not be announced.
        """
        channel = self.plane.channel("jobs")
        parameters = _parameters(request) | {
            "actor": actor,
            "announce": announce,
            "channel": channel,
        }
        # By itself the statement is a transaction; within another, a refusal must not end that.
        alone = connection.info.transaction_status is TransactionStatus.IDLE
        row, taken = None, None
        try:
            with nullcontext() if alone else connection.transaction():
                row = connection.execute(
                    self.plane.statement("jobs/jobs", "submit_job"), parameters
                ).fetchone()
        except pg.UniqueViolation as error:
            taken = error.diag.constraint_name
        if row is not None:
            return Submission(Submitted.QUEUED, row[0])
        return self._submitted_before(connection, request, taken)

    def claim(
        self, connection: Connection, worker_id: str, job_id: UUID, *, lease_seconds: float
    ) -> Claim | None:
        """Start a new attempt at one job, unless somebody has it or its resource."""
        found, _ = self._claim(connection, worker_id, "pick_one", {"job_id": job_id}, lease_seconds)
        return found[0] if found else None

    def claim_ready(
        self,
        connection: Connection,
        worker_id: str,
        *,
        project: str,
        kinds: Sequence[str],
        lease_seconds: float,
        limit: int = 1,
    ) -> list[Claim]:
        """Start new attempts at the most urgent jobs of these kinds."""
        if limit < 1:
            raise UsageError(f"{limit} jobs at a time are none", "claim one at least")
        picked = {"project": project, "kinds": list(kinds)}
        for _ in range(_CLAIM_TRIES):
            found, passed_over = self._claim(
                connection, worker_id, "pick_ready", picked, lease_seconds, limit, project
            )
            # Others were quicker with all of these resources; behind them there may be more.
            if found or not passed_over:
                break
        return found

    def beat(
        self,
        connection: Connection,
        worker_id: str,
        claims: Sequence[Claim],
        lease_seconds: float,
    ) -> set[str]:
        """Renew the leases of a worker; returns the attempts that are still its own."""
        refuse_no_lease(lease_seconds)
        rows = connection.execute(
            self.plane.statement("jobs/job_queue", "beat"),
            {
                "worker_id": worker_id,
                "job_ids": [claim.job_id for claim in claims],
                "attempt_ids": [claim.attempt_id for claim in claims],
                "lease": lease_seconds,
            },
        )
        return {row[0] for row in rows}

    def store_plan(self, connection: Connection, claim: Claim, plan: dict[str, Any] | None) -> bool:
        """Keep the plan of the load under way; False when the attempt is stale."""
        return self._write(connection, "jobs/jobs", "store_plan", claim, plan=_json(plan))

    def record_progress(
        self, connection: Connection, claim: Claim, progress: dict[str, Any]
    ) -> bool:
        """Say how far the attempt has got; False when it is stale."""
        return self._write(
            connection, "jobs/jobs", "record_progress", claim, progress=_json(progress)
        )

    def record_action(
        self, connection: Connection, claim: Claim, action: str, detail: dict[str, Any]
    ) -> bool:
        """Keep a step that is done; False when the attempt is stale."""
        return self._write(
            connection,
            "jobs/job_actions",
            "record_action",
            claim,
            action=action,
            detail=_json(detail),
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
        ending = Ending(claim, status, error, result)
        return bool(self.finish_many(connection, [ending], actor=actor))

    def finish_many(
        self, connection: Connection, endings: Sequence[Ending], *, actor: str
    ) -> set[str]:
        """Write several terminal states; returns the attempts that were the ones to do so.

        Those who wait for the jobs are told afterwards; after a crash in between, a scheduler or
        sweeper does.
        """
        rows = connection.execute(
            self.plane.finishing(),
            finish_parameters(endings, actor) | {"channel": self.plane.channel("jobs")},
        ).fetchall()
        self.settle(connection, [row[1] for row in rows if row[2]])
        return {row[0] for row in rows}

    def settle(self, connection: Connection, job_ids: Iterable[UUID]) -> None:
        """Tell those who wait for these jobs how they ended.

        The end of the jobs stands whatever happens here: a scheduler or sweeper tells them, too.
        """
        for job_id in job_ids:
            try:
                Needs(self.plane).settle(connection, job_id)
            except pg.Error as error:
                log.warning("needs_not_settled", job=str(job_id), error=first_line(error))

    def claim_limited(
        self,
        connection: Connection,
        worker_id: str,
        passed: Iterable[Sequence[Any]],
        *,
        project: str,
        lease_seconds: float,
    ) -> list[Claim]:
        """Start new attempts at those jobs with limits that a claim found and left to us."""
        found: list[Claim] = []
        for names, job_id, *_ in passed:
            with connection.transaction():
                Limits(self.plane, project).lock(connection, names)
                rows = connection.execute(
                    self.plane.claiming("pick_limited"),
                    {"job_id": job_id, "project": project}
                    | claim_parameters(self.plane, worker_id, lease_seconds),
                )
                found += read_claims(rows)
        return found

    def outcome(self, connection: Connection, claim: Claim) -> str | None:
        """How an attempt ended; None while it goes on."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "outcome_of_attempt"),
            {"attempt_id": claim.attempt_id},
        ).fetchone()
        return row[0] if row else None

    def give_back(
        self,
        connection: Connection,
        held: Claim | UnknownAttempt,
        *,
        actor: str,
        error: str | None = None,
        delay_seconds: float = 0.0,
    ) -> bool:
        """Put the job back: after an error, or, without one, because the worker leaves."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "give_back_job"),
            {
                "job_id": held.job_id,
                "attempt_id": held.attempt_id,
                "actor": actor,
                "error": error,
                "outcome": "given back" if error is None else "error",
                "event": "given back" if error is None else "to be retried",
                "delay": delay_seconds,
                "channel": self.plane.channel("jobs"),
            },
        ).fetchone()
        return row is not None

    def drop_pending(self, connection: Connection, job_id: UUID, actor: str, reason: str) -> bool:
        """Give up a job that nobody works on."""
        row = connection.execute(
            self.plane.statement("jobs/jobs", "drop_pending"),
            {"job_id": job_id, "actor": actor, "reason": reason},
        ).fetchone()
        if row is not None:
            self.settle(connection, [job_id])
        return row is not None

    def holder(self, connection: Connection, resource: str) -> Holder | None:
        """Who holds a resource."""
        row = connection.execute(
            self.plane.statement("jobs/table_locks", "get_holder"), {"resource": resource}
        ).fetchone()
        if row is None:
            return None
        return Holder(row[0], row[1], JobStatus(row[2]), *row[3:])

    def waiting_like(self, connection: Connection, request: JobRequest) -> list[UUID]:
        """Jobs for the same work that nobody works on, as those of a process that had to go."""
        rows = connection.execute(
            self.plane.statement("jobs/job_queue", "list_waiting_like"),
            {
                "project": request.project,
                "kind": request.kind,
                "name": request.name,
                "payload": _json(request.payload),
            },
        )
        return [row[0] for row in rows]

    def held_by(self, connection: Connection, worker_id: str) -> list[UnknownAttempt]:
        """The attempts that a worker holds, whether it knows of them or not."""
        rows = connection.execute(
            self.plane.statement("jobs/job_queue", "held_by"), {"worker_id": worker_id}
        )
        return [UnknownAttempt(*row) for row in rows]

    def live_attempts(self, connection: Connection) -> set[str]:
        """Attempts that hold a job now."""
        rows = connection.execute(self.plane.statement("jobs/job_queue", "live_attempts"), {})
        return {row[0] for row in rows}

    def depth(self, connection: Connection) -> int:
        """How many jobs could be claimed now."""
        row = connection.execute(self.plane.statement("jobs/job_queue", "depth"), {}).fetchone()
        assert row is not None
        return int(row[0])

    def seconds_to_next(
        self, connection: Connection, *, project: str, kinds: Sequence[str]
    ) -> float | None:
        """How long until a waiting job may run; None when none waits."""
        row = connection.execute(
            self.plane.statement("jobs/job_queue", "next_visible"),
            {"project": project, "kinds": list(kinds)},
        ).fetchone()
        return row[0] if row else None

    def _claim(
        self,
        connection: Connection,
        worker_id: str,
        pick: str,
        picked: dict[str, Any],
        lease_seconds: float,
        limit: int = 1,
        project: str = "",
    ) -> tuple[list[Claim], bool]:
        """New attempts, and whether a job was passed over because its resource was taken."""
        rows = connection.execute(
            self.plane.claiming(pick, limit),
            picked | claim_parameters(self.plane, worker_id, lease_seconds),
        ).fetchall()
        found = read_claims(rows)
        if len(found) == len(rows):
            return found, False
        found += self.claim_limited(
            connection,
            worker_id,
            [row for row in rows if row[0]],
            project=project,
            lease_seconds=lease_seconds,
        )
        return found, len(found) < len(rows)

    def _write(
        self, connection: Connection, table: str, name: str, claim: Claim, **values: Any
    ) -> bool:
        """Write for an attempt; False when it is stale."""
        written = connection.execute(
            self.plane.statement(table, name),
            {"job_id": claim.job_id, "attempt_id": claim.attempt_id, **values},
        )
        return written.rowcount == 1

    def _submitted_before(
        self, connection: Connection, request: JobRequest, taken: str | None
    ) -> Submission:
        """Why nothing was queued; `taken` is what another had, if that came out by a conflict."""
        if request.idempotency_key is not None:
            repeated = self._repeated(connection, request)
            if repeated is not None:
                return repeated
        if request.unique_key is not None:
            row = connection.execute(
                self.plane.statement("jobs/job_queue", "find_unique"),
                {"project": request.project, "unique_key": request.unique_key},
            ).fetchone()
            if row is not None:
                return Submission(Submitted.WAITING_ALREADY, row[0])
        if taken in ("jobs_idempotency", "job_queue_unique"):
            raise BusyError(
                f"job {request.name} was queued by another, and has just ended", "try again"
            )
        if taken is None and self.plane.draining(connection) is not None:
            return Submission(Submitted.DRAINING)
        return Submission(Submitted.LOCKED)

    def _repeated(self, connection: Connection, request: JobRequest) -> Submission | None:
        row = connection.execute(
            self.plane.statement("jobs/jobs", "find_by_idempotency_key"), _parameters(request)
        ).fetchone()
        if row is None:
            return None
        job_id, kind, name, is_same = row
        if not is_same:
            raise KeyReused(
                f"the idempotency key {request.idempotency_key!r} was given to job {job_id}, "
                f"which asks for something else ({kind} {name})",
                "use a new key for new work",
            )
        return Submission(Submitted.REPEATED, job_id)


def read_claims(rows: Iterable[Sequence[Any]]) -> list[Claim]:
    """What was claimed; a job that was passed over has no attempt, but perhaps limits in front."""
    return [Claim(*row[1:]) for row in rows if row[2] is not None]


def claim_parameters(
    plane: ControlDatabase, worker_id: str, lease_seconds: float
) -> dict[str, object]:
    """What every claim needs, whatever it picks."""
    refuse_no_lease(lease_seconds)
    return {"worker_id": worker_id, "lease": lease_seconds, "sequence": plane.sequence}


def refuse_no_lease(seconds: float) -> None:
    if seconds <= 0:
        raise UsageError(
            f"a lease of {seconds:g} seconds holds nothing", "give a positive duration"
        )


def finish_parameters(endings: Sequence[Ending], actor: str) -> dict[str, object]:
    """Several endings, column by column; a column without a value is left out altogether."""
    errors = [ending.error for ending in endings]
    results = [_json(ending.result) for ending in endings]
    return {
        # Spelled out here, since the driver would look at every element: none needs quoting.
        "job_ids": f"{{{','.join(ending.claim.job_id.hex for ending in endings)}}}",
        "attempt_ids": f"{{{','.join(ending.claim.attempt_id for ending in endings)}}}",
        "statuses": f"{{{','.join(ending.status.value for ending in endings)}}}",
        "errors": None if all(one is None for one in errors) else errors,
        "results": None if all(one is None for one in results) else results,
        "actor": actor,
    }


def _json(value: dict[str, Any] | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)


def _parameters(request: JobRequest) -> dict[str, Any]:
    return {
        "job_id": new_job_id(),
        "project": request.project,
        "kind": request.kind,
        "name": request.name,
        "resource": request.resource,
        "payload": Jsonb(request.payload),
        "max_attempts": request.max_attempts,
        "priority": request.priority,
        "lock_at": request.lock_at.value,
        "visible_at": request.visible_at,
        "delay": request.delay_seconds,
        "unique_key": request.unique_key,
        "idempotency_key": request.idempotency_key,
        "retry_of": request.retry_of,
        "limits": list(request.limits) or None,
        "needs": list(request.needs) or None,
    }
