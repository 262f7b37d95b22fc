"""What keeps a job waiting or out: locks of tables, keys, and places of named resources."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock
from uuid import UUID

import pytest
from psycopg.errors import CheckViolation

from integration.job_store import RESOURCE, Store, opened, request, store
from tidegate.core.errors import UsageError
from tidegate.jobs.claim import WorkerTurns
from tidegate.jobs.dependencies import Limits
from tidegate.jobs.job import Claim, Ending, JobStatus, LockAt, Submission, Submitted
from tidegate.postgres.connection import Connection

__all__ = ["opened", "store"]

SUBMITTERS = 8


def ids(claims: list[Claim]) -> list[UUID]:
    return [claim.job_id for claim in claims]


# Resources: locked at submit, at claim or never


def test_a_lock_at_submit_refuses_the_next_one_at_once(store: Store) -> None:
    found = store.at_once(
        SUBMITTERS,
        lambda own, _: store.jobs.submit(own, request(lock_at=LockAt.SUBMIT), "test"),
    )
    assert [one.outcome for one in found].count(Submitted.QUEUED) == 1
    before = store.everything()
    assert store.ask(lock_at=LockAt.SUBMIT) == Submission(Submitted.LOCKED)
    assert store.everything() == before
    assert store.value("SELECT count(*) FROM jobs") == 1
    store.submit(lock_at=LockAt.SUBMIT, resource="another")


@pytest.mark.parametrize("lock_at", [LockAt.SUBMIT, LockAt.CLAIM])
def test_a_job_that_locks_at_claim_waits_for_whoever_has_its_resource(
    store: Store, lock_at: LockAt
) -> None:
    for _ in range(1 if lock_at is LockAt.SUBMIT else 3):
        store.submit(lock_at=lock_at, priority=9)
    second = store.submit(lock_at=LockAt.CLAIM)
    free = store.submit(resource="free", lock_at=LockAt.CLAIM)
    mine = store.take_one()
    assert mine.resource == RESOURCE
    assert store.take_one().job_id == free
    assert store.take(5) == []
    assert store.jobs.claim(store.session, "worker", second, lease_seconds=60) is None
    assert store.get(second).status is JobStatus.PENDING
    assert store.finish(mine, JobStatus.FAILED)
    assert store.take_one().resource == RESOURCE


def test_without_a_lock_jobs_of_one_resource_run_side_by_side(store: Store) -> None:
    submitted = [store.submit(lock_at=LockAt.NEVER) for _ in range(3)]
    assert ids(store.take(5)) == submitted
    assert store.locked() == set()
    store.submit(resource=None)
    before = store.everything()
    for lock_at in (LockAt.SUBMIT, LockAt.CLAIM):
        with pytest.raises(CheckViolation):
            store.ask(resource=None, lock_at=lock_at)
    assert store.everything() == before


def test_of_two_jobs_of_one_resource_in_a_batch_the_more_urgent_is_taken(store: Store) -> None:
    store.submit(resource="r", lock_at=LockAt.CLAIM)
    urgent = store.submit(resource="r", lock_at=LockAt.CLAIM, priority=5)
    other = store.submit(resource="s", lock_at=LockAt.CLAIM, priority=-1)
    assert ids(store.take(3)) == [urgent, other]
    assert store.value("SELECT count(*) FROM job_attempts") == 2


def test_a_claimer_that_was_too_late_for_one_resource_takes_the_next_job(store: Store) -> None:
    """It waits for the lock of a claim that is not committed yet, and then looks again."""
    for _ in range(2):
        store.submit(resource="r", lock_at=LockAt.CLAIM, priority=9)
    free = store.submit(resource="free", lock_at=LockAt.CLAIM)
    with store.plane.connect() as first, store.plane.connect() as second:
        pid = second.info.backend_pid
        with ThreadPoolExecutor(1) as pool:
            with first.transaction():
                assert store.take_one(session=first).resource == "r"
                late = pool.submit(store.take, session=second)
                while not store.value("SELECT cardinality(pg_blocking_pids(%s))", pid):
                    assert not late.done()
            assert ids(late.result()) == [free]


def test_batch_claimers_at_once_with_overlapping_resources_never_deadlock_nor_share(
    store: Store,
) -> None:
    rng, claimers, total = Random(5), 6, 100
    for _ in range(total):
        name = f"r{rng.randrange(7)}"
        store.submit(resource=name, lock_at=LockAt.CLAIM, priority=rng.randrange(3))
    at_work = Lock()
    worked_on: set[str | None] = set()

    def work(own: Connection, number: int) -> list[Claim]:
        done: list[Claim] = []
        while own.execute("SELECT FROM tidegate_control.job_queue LIMIT 1").fetchone() is not None:
            mine = store.take(4, worker_id=f"worker {number}", session=own)
            held = own.execute(
                "SELECT count(*) FROM tidegate_control.table_locks WHERE job_id = ANY(%s)",
                (ids(mine),),
            ).fetchone()
            assert held == (len(mine),)
            resources = {one.resource for one in mine}
            assert len(resources) == len(mine)
            with at_work:
                assert not worked_on & resources
                worked_on.update(resources)
            with at_work:
                worked_on.difference_update(resources)
            endings = [Ending(one, JobStatus.DONE) for one in mine]
            assert len(store.jobs.finish_many(own, endings[::-1], actor="test")) == len(mine)
            done += mine
        return done

    claims = [one for some in store.at_once(claimers, work) for one in some]
    assert len(claims) == len(set(ids(claims))) == len({one.fence for one in claims}) == total
    assert store.locked() == set()


# Unique jobs and idempotent submits


@pytest.mark.parametrize("lock_at", LockAt)
def test_a_unique_key_is_free_again_when_its_job_has_ended(store: Store, lock_at: LockAt) -> None:
    unique = request(unique_key="daily", lock_at=lock_at)
    found = store.at_once(SUBMITTERS, lambda own, _: store.jobs.submit(own, unique, "test"))
    assert [one.outcome for one in found].count(Submitted.QUEUED) == 1
    assert {one.outcome for one in found} == {Submitted.QUEUED, Submitted.WAITING_ALREADY}
    assert len({one.job_id for one in found}) == 1
    before = store.everything()
    again = store.jobs.submit(store.session, unique, "test")
    assert again == Submission(Submitted.WAITING_ALREADY, found[0].job_id)
    assert store.everything() == before
    store.submit(unique_key="daily", project="bank", resource="another")
    assert store.finish(store.take_one())
    third = store.jobs.submit(store.session, unique, "test")
    assert third.outcome is Submitted.QUEUED
    assert third.job_id not in (None, found[0].job_id)
    assert store.jobs.drop_pending(store.session, third.job_id, "test", "no")
    store.submit(unique_key="daily")


@pytest.mark.parametrize("lock_at", LockAt)
def test_the_same_request_with_the_same_key_gets_the_same_job_even_when_it_has_ended(
    store: Store, lock_at: LockAt
) -> None:
    asked = request(idempotency_key="k1", lock_at=lock_at, payload={"days": (1, 2), "at": 1.0})
    found = store.at_once(SUBMITTERS, lambda own, _: store.jobs.submit(own, asked, "test"))
    assert [one.outcome for one in found].count(Submitted.QUEUED) == 1
    assert {one.outcome for one in found} == {Submitted.QUEUED, Submitted.REPEATED}
    assert len({one.job_id for one in found}) == 1
    assert store.value("SELECT count(*) FROM job_queue") == 1
    for _ in range(2):
        before = store.everything()
        again = store.jobs.submit(store.session, asked, "somebody else")
        assert again == Submission(Submitted.REPEATED, found[0].job_id)
        assert store.everything() == before
        if store.jobs.depth(store.session):
            assert store.finish(store.take_one())


def test_another_request_with_a_used_key_is_refused_and_nothing_changes(store: Store) -> None:
    job_id = store.submit(idempotency_key="k1")
    changes: tuple[dict[str, object], ...] = (
        {"name": "items"},
        {"kind": "vacuum"},
        {"resource": "r"},
        {"payload": {}},
    )
    before = store.everything()
    for change in changes:
        with pytest.raises(UsageError, match=f"'k1' was given to job {job_id}") as raised:
            store.ask(idempotency_key="k1", **change)
        assert "use a new key" in str(raised.value)
    assert store.everything() == before
    store.submit(idempotency_key="k1", project="bank", payload={})


def test_a_refusal_inside_a_transaction_leaves_that_transaction_whole(store: Store) -> None:
    store.submit(unique_key="daily")
    with store.session.transaction():
        store.execute("INSERT INTO cursor_observations VALUES ('p', now(), '1')")
        assert store.ask(unique_key="daily").outcome is Submitted.WAITING_ALREADY
        store.submit()
    assert store.value("SELECT count(*) FROM jobs") == 2
    assert store.execute("DELETE FROM cursor_observations RETURNING value") == [("1",)]


# Named resources: at most so many jobs at once, whoever claims


@pytest.fixture
def limits(store: Store) -> Limits:
    """Two places for the shop, one for the disk."""
    made = Limits(store.plane, "shop")
    made.declare(store.session, {"shop": 2, "disk": 1})
    return made


def test_a_job_waits_while_its_resource_has_no_place_and_others_pass(
    store: Store, limits: Limits
) -> None:
    limited = [store.submit(limits=("shop",)) for _ in range(4)]
    free = store.submit()
    unheard = [store.submit(limits=("unheard of",)) for _ in range(2)]
    claims = store.take(10)
    assert set(ids(claims)) == {*limited[:2], free, unheard[0]}, "what nobody declared has one"
    assert store.take(10) == []
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"]) is None
    with store.plane.connect() as listening:
        listening.execute(f"LISTEN {store.plane.channel('jobs')}")
        store.finish(next(claim for claim in claims if claim.job_id == limited[0]))
        assert [told.payload for told in listening.notifies(timeout=5, stop_after=1)] == [""]
    assert ids(store.take(10)) == [limited[2]]


def test_of_those_with_limits_the_most_urgent_goes_first(store: Store, limits: Limits) -> None:
    low = store.submit(limits=("disk",), priority=-5)
    high = store.submit(limits=("disk",), priority=5)
    middle = store.submit(limits=("disk",))
    turns = WorkerTurns(store.plane, "w", "shop", ("sync",), 60.0)
    order, claims = list[UUID](), turns.take(store.session, [], 8).claims
    while claims:
        assert len(claims) == 1
        order += ids(claims)
        turn = turns.take(store.session, [Ending(claims[0], JobStatus.DONE)], 8)
        assert turn.won == {claims[0].attempt_id}
        claims = turn.claims
    assert order == [high, middle, low]


def test_a_job_needs_a_place_of_each_of_its_resources(store: Store, limits: Limits) -> None:
    both = store.submit(limits=("shop", "disk"))
    disk, shop = store.submit(limits=("disk",)), store.submit(limits=("shop",))
    claims = store.take(10)
    assert sorted(ids(claims)) == sorted([both, shop])
    store.finish(next(claim for claim in claims if claim.job_id == both))
    assert ids(store.take(10)) == [disk]
    assert store.get(both).limits == ["shop", "disk"]


def test_the_places_of_one_project_are_not_those_of_another(store: Store, limits: Limits) -> None:
    Limits(store.plane, "bank").declare(store.session, {"shop": 1})
    for project in ("shop", "bank"):
        for _ in range(3):
            store.submit(project=project, limits=("shop",))
    assert len(store.take(10, project="bank")) == 1
    assert len(store.take(10)) == 2


def test_more_places_count_at_once_and_fewer_let_what_runs_end(
    store: Store, limits: Limits
) -> None:
    for _ in range(6):
        store.submit(limits=("shop",))
    assert len(store.take(10)) == 2
    limits.declare(store.session, {"shop": 4})
    claims = store.take(10)
    assert len(claims) == 2
    limits.declare(store.session, {"shop": 3})
    assert store.execute("SELECT name, places FROM resource_limits") == [("shop", 3)]
    store.finish(claims[0])
    assert store.take(10) == []


def test_a_job_that_is_given_back_or_reclaimed_gives_its_place_back(
    store: Store, limits: Limits
) -> None:
    first, second = store.submit(limits=("disk",)), store.submit(limits=("disk",))
    claim = store.take_one()
    assert store.give_back(claim, "oh", 60)
    worker = store.new_worker()
    (again,) = store.take(10, worker_id=worker.worker_id)
    assert (claim.job_id, again.job_id) == (first, second)
    store.kill(worker.worker_id)
    store.reclaim()
    assert store.take_one().job_id == second


def test_a_resource_and_a_table_are_taken_together_or_not_at_all(
    store: Store, limits: Limits
) -> None:
    for table in "ttu":
        store.submit(limits=("shop",), lock_at=LockAt.CLAIM, resource=table)
    claims = store.take(10)
    assert {claim.resource for claim in claims} == store.locked() == {"t", "u"}
    for claim in claims:
        store.finish(claim)
    assert len(store.take(10)) == 1


@pytest.mark.parametrize("by_turns", [False, True], ids=["claims", "turns"])
def test_however_many_claim_at_once_no_more_than_the_places_are_taken(
    store: Store, limits: Limits, by_turns: bool
) -> None:
    """Each in a session of its own; after every claim the database is asked."""
    total = 60
    for number in range(total):
        store.submit(limits=("shop",) if number % 3 else ("shop", "disk"))
    seen, done = list[tuple[int, int]](), list[Ending]()
    count = (
        "SELECT count(*), count(*) FILTER (WHERE 'disk' = ANY(limits))"
        " FROM tidegate_control.job_queue WHERE claimed_by IS NOT NULL"
    )

    def work(session: Connection, number: int) -> None:
        turns = WorkerTurns(store.plane, f"w{number}", "shop", ("sync",), 60.0)
        endings: list[Ending] = []
        while len(done) < total:
            if by_turns:
                claims = turns.take(session, endings, 3).claims
                done.extend(endings)
            else:
                claims = store.take(3, worker_id=f"w{number}", session=session)
            seen.extend(session.execute(count).fetchall())
            endings = [Ending(claim, JobStatus.DONE) for claim in claims]
            if not by_turns and endings:
                store.jobs.finish_many(session, endings, actor="w")
                done.extend(endings)

    store.at_once(6, work)
    assert len({ending.claim.job_id for ending in done}) == len(done) == total
    assert max(all_ for all_, _ in seen) == 2
    assert max(disk for _, disk in seen) == 1
