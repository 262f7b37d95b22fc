"""What the job store should hold after each step, told without a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tidegate.jobs.job import Claim, JobStatus, LockAt, Submitted

MAX_ATTEMPTS = 2
Locks = dict[str, UUID]


@dataclass
class ModelJob:
    """One job as the rules say it should be."""

    job_id: UUID
    resource: str
    lock_at: LockAt
    priority: int
    unique_key: str | None
    place: int
    retry_of: UUID | None
    status: JobStatus = JobStatus.PENDING
    current: Claim | None = None
    """the attempt that may write"""
    written_by: str | None = None
    """the attempt that the row of the job names"""
    cancelling: bool = False
    worker_id: str | None = None
    lease_over: bool = False
    crashes: int = 0
    errors: int = 0
    outcomes: dict[str, str | None] = field(default_factory=dict)
    """by attempt, in the order of the claims"""
    events: list[tuple[str, str | None]] = field(default_factory=lambda: [("submitted", None)])

    def end(self, status: JobStatus, attempt_id: str | None) -> None:
        self.status, self.current, self.cancelling = status, None, False
        self.written_by = attempt_id
        self.events.append((status.value, attempt_id))

    def leave(self, event: str, outcome: str, place: int) -> None:
        """From running to pending."""
        assert self.current is not None
        self.outcomes[self.current.attempt_id] = outcome
        self.events.append((event, self.current.attempt_id))
        self.status, self.current, self.written_by = JobStatus.PENDING, None, None
        self.lease_over, self.place = False, place


@dataclass
class Model:
    """All jobs, the workers that live, and whether jobs are taken in."""

    jobs: dict[UUID, ModelJob] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    draining: bool = False
    places: int = 0

    def next_place(self) -> int:
        self.places += 1
        return self.places

    def locks(self) -> Locks:
        """A lock at submit lasts to the end, one at claim as long as the job runs."""
        return {
            job.resource: job.job_id
            for job in self.jobs.values()
            if (job.lock_at is LockAt.SUBMIT and not job.status.is_terminal)
            or (job.lock_at is LockAt.CLAIM and job.status is JobStatus.RUNNING)
        }

    def answer(self, resource: str, lock_at: LockAt, unique_key: str | None) -> Submitted:
        """What becomes of a request."""
        if unique_key is not None and any(
            job.unique_key == unique_key and not job.status.is_terminal
            for job in self.jobs.values()
        ):
            return Submitted.WAITING_ALREADY
        if self.draining:
            return Submitted.DRAINING
        if lock_at is LockAt.SUBMIT and resource in self.locks():
            return Submitted.LOCKED
        return Submitted.QUEUED

    def ready(self, limit: int) -> list[UUID]:
        """Which jobs a claim of so many takes."""
        locks = self.locks()
        waiting = sorted(
            (job for job in self.jobs.values() if job.status is JobStatus.PENDING),
            key=lambda job: (-job.priority, job.place),
        )
        free = [
            job for job in waiting if job.lock_at is not LockAt.CLAIM or job.resource not in locks
        ]
        taken: list[UUID] = []
        resources: set[str] = set()
        for job in free[:limit]:
            if job.lock_at is LockAt.CLAIM:
                if job.resource in resources:
                    continue
                resources.add(job.resource)
            taken.append(job.job_id)
        return taken

    def may_claim(self, job: ModelJob) -> bool:
        return job.status is JobStatus.PENDING and (
            job.lock_at is not LockAt.CLAIM or job.resource not in self.locks()
        )

    def start(self, claim: Claim, worker_id: str) -> None:
        job = self.jobs[claim.job_id]
        job.status, job.current, job.written_by = JobStatus.RUNNING, claim, claim.attempt_id
        job.worker_id, job.lease_over = worker_id, False
        job.outcomes[claim.attempt_id] = None
        job.events.append(("claimed", claim.attempt_id))
        self.claims.append(claim)

    def is_current(self, claim: Claim) -> bool:
        return self.jobs[claim.job_id].current == claim

    def is_dead(self, job: ModelJob) -> bool:
        return job.current is not None and (job.lease_over or job.worker_id not in self.alive)

    def bury(self, job: ModelJob, published: bool) -> None:
        """A sweeper takes the job of a dead attempt."""
        job.leave("reclaimed", "lost", self.next_place())
        job.crashes += 1
        if job.crashes >= MAX_ATTEMPTS:
            job.end(JobStatus.DONE if published else JobStatus.FAILED, None)
