"""The job store against a model, over random steps of two sessions, workers and their deaths."""

from __future__ import annotations

from random import randrange
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chaos_seeds import chosen
from integration.job_model import MAX_ATTEMPTS, Model, ModelJob
from integration.job_store import Store, opened, request
from tidegate.jobs.control_database import Tokens
from tidegate.jobs.job import Claim, Ending, JobStatus, LockAt, Submitted
from tidegate.jobs.reclaim import LostAttempt
from tidegate.postgres.connection import Connection

__all__ = ["opened"]

# Only the model lets a lease run out, however slow the machine is.
LEASE = 3600.0
ENDS = [JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED]
ANY = st.integers(0, 999)
SESSIONS = st.integers(0, 1)


# All that is looked at, in one round trip.
LOOK = """
SELECT jsonb_build_object(
    'jobs', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, status, attempt_id,
        attempt_count, crash_count, error_count, retry_of, finished_at IS NOT NULL)), '[]')
        FROM jobs),
    'queue', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, claimed_at IS NOT NULL
        AND fence IS NOT NULL, attempt_id)), '[]') FROM job_queue),
    'locks', (SELECT coalesce(jsonb_agg(jsonb_build_array(resource, job_id)), '[]')
        FROM table_locks),
    'attempts', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, attempt_id, outcome)
        ORDER BY fence), '[]') FROM job_attempts),
    'audit', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, event, attempt_id)
        ORDER BY id), '[]') FROM job_audit),
    'ended', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, j::text)), '[]') FROM jobs j
        WHERE status IN ('done', 'failed', 'cancelled')))
"""


def rows_of(found: list[list[Any]]) -> dict[str, list[Any]]:
    return {row[0]: row[1:] for row in found}


def grouped(found: list[list[Any]]) -> dict[str, list[Any]]:
    """The rows of each job, in their order."""
    groups: dict[str, list[Any]] = {}
    for job_id, *rest in found:
        groups.setdefault(job_id, []).append(rest)
    return groups


class Machine(RuleBasedStateMachine):
    """Each step is a transaction on one of two sessions; old claims stay in play."""

    store: ClassVar[Store]
    both: ClassVar[tuple[Connection, Connection]]

    @initialize()
    def begin(self) -> None:
        self.store.clean()
        self.model = Model()
        self.ended: dict[str, str] = {}
        self.highest = 0
        for _ in range(2):
            self.new_worker()
        for resource in ("r0", "r1"):
            self.submit(0, resource, LockAt.CLAIM, 0, None, None)
        self.claim(1, 0, 1)

    # What the steps choose from

    def has_jobs(self) -> bool:
        return bool(self.model.jobs)

    def has_claims(self) -> bool:
        return bool(self.model.claims)

    def job(self, any_: int) -> ModelJob:
        return list(self.model.jobs.values())[any_ % len(self.model.jobs)]

    def claim_of(self, any_: int) -> Claim:
        """More often a late one, which may still hold its job."""
        return self.model.claims[-1 - (any_ % len(self.model.claims))]

    # Work comes in

    @rule(
        on=SESSIONS,
        resource=st.sampled_from(["r0", "r1", "r2"]),
        lock_at=st.sampled_from(LockAt),
        priority=st.integers(0, 2),
        unique_key=st.sampled_from([None, None, "u"]),
        retried=st.none() | ANY,
    )
    def submit(
        self,
        on: int,
        resource: str,
        lock_at: LockAt,
        priority: int,
        unique_key: str | None,
        retried: int | None,
    ) -> None:
        done = [job.job_id for job in self.model.jobs.values() if job.status.is_terminal]
        retry_of = done[retried % len(done)] if done and retried is not None else None
        expected = self.model.answer(resource, lock_at, unique_key)
        asked = request(
            resource=resource,
            lock_at=lock_at,
            priority=priority,
            unique_key=unique_key,
            retry_of=retry_of,
            max_attempts=MAX_ATTEMPTS,
        )
        answer = self.store.jobs.submit(self.both[on], asked, "test")
        assert answer.outcome is expected
        if expected is Submitted.WAITING_ALREADY:
            assert answer.job_id is not None
            assert self.model.jobs[answer.job_id].unique_key == unique_key
        elif expected is Submitted.QUEUED:
            assert answer.job_id is not None
            place = self.model.next_place()
            self.model.jobs[answer.job_id] = ModelJob(
                answer.job_id, resource, lock_at, priority, unique_key, place, retry_of
            )
        else:
            assert answer.job_id is None

    @rule(on=SESSIONS, start=st.sampled_from([False, False, True]))
    def drain(self, on: int, start: bool) -> None:
        plane = self.store.plane
        changed = (
            plane.start_draining(self.both[on], "ops")
            if start
            else plane.stop_draining(self.both[on])
        )
        assert changed is (self.model.draining is not start)
        self.model.draining = start

    # Workers come, claim, beat and go

    def new_worker(self) -> str:
        worker_id = self.store.new_worker().worker_id
        self.model.alive.add(worker_id)
        return worker_id

    def some_worker(self, any_: int) -> str:
        if not self.model.alive:
            return self.new_worker()
        return sorted(self.model.alive)[any_ % len(self.model.alive)]

    @rule(on=SESSIONS, worker=ANY, limit=st.integers(1, 4))
    def claim(self, on: int, worker: int, limit: int) -> None:
        worker_id = self.some_worker(worker)
        expected = self.model.ready(limit)
        found = self.store.take(limit, worker_id=worker_id, lease=LEASE, session=self.both[on])
        assert [one.job_id for one in found] == expected
        # Fences order attempts that follow one another. Jobs claimed together
        # are different jobs: their fences are above all earlier ones, in any order.
        for one in sorted(found, key=lambda claim: claim.fence):
            self.started(one, worker_id)

    @precondition(has_jobs)
    @rule(on=SESSIONS, worker=ANY, which=ANY)
    def claim_by_id(self, on: int, worker: int, which: int) -> None:
        worker_id, job = self.some_worker(worker), self.job(which)
        expected = self.model.may_claim(job)
        found = self.store.jobs.claim(self.both[on], worker_id, job.job_id, lease_seconds=LEASE)
        assert (found is not None) is expected
        if found is not None:
            self.started(found, worker_id)

    def started(self, claim: Claim, worker_id: str) -> None:
        assert claim.fence > self.highest
        self.highest = claim.fence
        self.model.start(claim, worker_id)

    @precondition(has_claims)
    @rule(on=SESSIONS, which=st.lists(ANY, max_size=4))
    def beat(self, on: int, which: list[int]) -> None:
        claims = list({one.attempt_id: one for one in map(self.claim_of, which)}.values())
        current = [one for one in claims if self.model.is_current(one)]
        mine = self.store.jobs.beat(self.both[on], "any", claims, LEASE)
        assert mine == {one.attempt_id for one in current}
        for one in current:
            self.model.jobs[one.job_id].lease_over = False

    @precondition(has_claims)
    @rule(which=ANY)
    def lease_runs_out(self, which: int) -> None:
        job = self.model.jobs[self.claim_of(which).job_id]
        if job.current is not None:
            self.store.expire(job.job_id)
            job.lease_over = True

    @precondition(lambda self: self.model.alive)
    @rule(which=ANY)
    def worker_dies(self, which: int) -> None:
        worker_id = self.some_worker(which)
        self.store.kill(worker_id)
        self.model.alive.discard(worker_id)

    # Attempts end

    @precondition(has_claims)
    @rule(on=SESSIONS, which=st.lists(ANY, min_size=1, max_size=3), status=st.sampled_from(ENDS))
    def finish(self, on: int, which: list[int], status: JobStatus) -> None:
        claims = list({one.attempt_id: one for one in map(self.claim_of, which)}.values())
        current = [one for one in claims if self.model.is_current(one)]
        endings = [Ending(one, status, None, {"n": 1}) for one in claims]
        won = self.store.jobs.finish_many(self.both[on], endings, actor="test")
        assert won == {one.attempt_id for one in current}
        for one in current:
            job = self.model.jobs[one.job_id]
            job.outcomes[one.attempt_id] = status.value
            job.errors += status is JobStatus.FAILED
            job.end(status, one.attempt_id)

    def has_stale(self) -> bool:
        return bool(self.stale())

    def stale(self) -> list[Claim]:
        """Attempts that were replaced, at jobs that have not ended."""
        return [
            one
            for one in self.model.claims
            if not self.model.is_current(one) and not self.model.jobs[one.job_id].status.is_terminal
        ]

    @precondition(has_stale)
    @rule(on=SESSIONS, which=ANY, status=st.sampled_from(ENDS))
    def a_zombie_writes(self, on: int, which: int, status: JobStatus) -> None:
        found, session, jobs = self.stale(), self.both[on], self.store.jobs
        zombie = found[which % len(found)]
        assert not jobs.finish(session, zombie, status, actor="zombie")
        assert not jobs.give_back(session, zombie, actor="zombie")
        assert not jobs.store_plan(session, zombie, {"n": 1})
        assert not jobs.record_action(session, zombie, "publish", {})
        assert jobs.beat(session, "zombie", [zombie], 60) == set()
        assert Tokens(jobs.plane).reissue(session, zombie, 0) is None

    @precondition(has_claims)
    @rule(on=SESSIONS, which=ANY, error=st.sampled_from([None, "broken"]))
    def give_back(self, on: int, which: int, error: str | None) -> None:
        mine = self.claim_of(which)
        expected = self.model.is_current(mine)
        given = self.store.jobs.give_back(self.both[on], mine, actor="test", error=error)
        assert given is expected
        if expected:
            job = self.model.jobs[mine.job_id]
            job.errors += error is not None
            event, outcome = ("to be retried", "error") if error else ("given back", "given back")
            job.leave(event, outcome, self.model.next_place())

    @precondition(has_claims)
    @rule(on=SESSIONS, which=ANY, published=st.booleans())
    def reclaim(self, on: int, which: int, published: bool) -> None:
        mine = self.claim_of(which)
        job = self.model.jobs[mine.job_id]
        expected = self.model.is_current(mine) and self.model.is_dead(job)
        dead = LostAttempt(mine.job_id, mine.attempt_id, "sync", None, {}, None, 0, max_attempts=5)
        taken = self.store.dead.reclaim(self.both[on], dead, "sweeper", published=published)
        assert taken is expected
        if expected:
            self.model.bury(job, published)

    @rule(on=SESSIONS)
    def sweep(self, on: int) -> None:
        found = self.store.dead.list(self.both[on], project="shop")
        expected = {job.job_id for job in self.model.jobs.values() if self.model.is_dead(job)}
        assert {dead.job_id for dead in found} == expected
        for dead in found:
            assert self.store.dead.reclaim(self.both[on], dead, "sweeper")
            self.model.bury(self.model.jobs[dead.job_id], published=False)

    # Somebody cancels

    @precondition(has_jobs)
    @rule(on=SESSIONS, which=ANY)
    def drop(self, on: int, which: int) -> None:
        job = self.job(which)
        expected = job.status is JobStatus.PENDING
        assert self.store.jobs.drop_pending(self.both[on], job.job_id, "ops", "no") is expected
        if expected:
            job.end(JobStatus.CANCELLED, None)

    @precondition(has_jobs)
    @rule(on=SESSIONS, which=ANY)
    def request_cancel(self, on: int, which: int) -> None:
        job = self.job(which)
        found = self.store.cancels.request(
            self.both[on], job.job_id, actor="ops", patience_seconds=30
        )
        assert (found is not None) is (job.status is JobStatus.RUNNING)
        if found is not None:
            attempt_id = job.current.attempt_id if job.current else None
            if attempt_id is not None:
                job.outcomes[attempt_id] = "cancelled"
            job.events.append(("cancel requested", attempt_id))
            job.current, job.written_by, job.cancelling = None, None, True

    @precondition(has_jobs)
    @rule(on=SESSIONS, which=ANY, status=st.sampled_from([JobStatus.CANCELLED, JobStatus.DONE]))
    def finish_cancel(self, on: int, which: int, status: JobStatus) -> None:
        job = self.job(which)
        expected = job.cancelling
        ended = self.store.cancels.finish(self.both[on], job.job_id, status, actor="ops")
        assert ended is expected
        if expected:
            job.end(status, None)

    # What must hold after every step

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        jobs = self.model.jobs.values()
        found = self.store.value(LOOK)
        assert rows_of(found["jobs"]) == {
            str(job.job_id): [
                job.status.value,
                job.written_by,
                len(job.outcomes),
                job.crashes,
                job.errors,
                str(job.retry_of) if job.retry_of else None,
                job.status.is_terminal,
            ]
            for job in jobs
        }
        # A job is in the queue until it ends, and claimed as long as it runs.
        assert rows_of(found["queue"]) == {
            str(job.job_id): [
                job.status is JobStatus.RUNNING,
                job.current.attempt_id if job.current else None,
            ]
            for job in jobs
            if not job.status.is_terminal
        }
        # A lock is there as long as its rule says, so no two that run share what they lock.
        assert dict(found["locks"]) == {
            resource: str(job_id) for resource, job_id in self.model.locks().items()
        }
        running = [
            job.resource
            for job in jobs
            if job.status is JobStatus.RUNNING and job.lock_at is not LockAt.NEVER
        ]
        assert len(set(running)) == len(running)
        # Attempts and audit tell the same story.
        assert grouped(found["attempts"]) == {
            str(job.job_id): [[*one] for one in job.outcomes.items()]
            for job in jobs
            if job.outcomes
        }
        events = grouped(found["audit"])
        assert events == {str(job.job_id): [[*one] for one in job.events] for job in jobs}
        # At most one attempt ends a job, and the end is final.
        for told in events.values():
            assert len([event for event, _ in told if event in ENDS]) <= 1
        ended = dict(found["ended"])
        assert self.ended.items() <= ended.items()
        self.ended = ended


def drive(store: Store, examples: int, *phases: Phase, given: int | None = None) -> None:
    """So many examples; without a seed the same ones every time."""
    with store.plane.connect() as one, store.plane.connect() as two:
        machine = type("DrivenMachine", (Machine,), {"store": store, "both": (one, two)})
        if given is not None:
            seed(given)(machine)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                phases=phases,
                derandomize=given is None,
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_the_store_does_what_the_model_does_for_a_dozen_seeds(opened: Store) -> None:
    drive(opened, 12, Phase.generate)


@pytest.mark.chaos
def test_the_store_does_what_the_model_does_for_two_hundred_seeds(opened: Store) -> None:
    drive(opened, 200, Phase.generate, Phase.shrink, given=chosen(randrange(10**6)))
