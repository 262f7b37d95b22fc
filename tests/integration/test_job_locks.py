"""Resources: locked at submit, at claim or never, by any number of claimers at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Lock

import pytest
from psycopg.errors import CheckViolation

from integration.job_store import Store, open_store, request
from tidegate.model.job import Claim, Ending, JobStatus, LockAt, Submission, Submitted
from tidegate.postgres.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as store:
        yield store


@pytest.fixture
def store(opened: Store) -> Store:
    opened.clean()
    return opened


def test_a_lock_at_submit_refuses_the_next_one_at_once(store: Store) -> None:
    store.submit(lock_at=LockAt.SUBMIT)
    before = store.everything()
    second = store.jobs.submit(store.session, request(lock_at=LockAt.SUBMIT), "test")
    assert second == Submission(Submitted.LOCKED)
    assert store.everything() == before


def test_a_lock_at_claim_lets_the_next_one_wait_and_it_runs_after_the_first(store: Store) -> None:
    first, second = store.submit(lock_at=LockAt.CLAIM), store.submit(lock_at=LockAt.CLAIM)
    assert store.locked() == set()
    mine = store.claim_one()
    assert mine.job_id == first
    assert store.claim(5) == []
    assert store.jobs.claim(store.session, "worker", second, lease_seconds=60) is None
    assert store.get(second).status is JobStatus.PENDING
    assert store.jobs.finish(store.session, mine, JobStatus.FAILED, actor="test")
    assert store.claim_one().job_id == second


def test_without_a_lock_jobs_of_one_resource_run_side_by_side(store: Store) -> None:
    submitted = [store.submit(lock_at=LockAt.NEVER) for _ in range(3)]
    assert [one.job_id for one in store.claim(5)] == submitted
    assert store.locked() == set()


def test_only_a_job_that_locks_nothing_may_be_without_a_resource(store: Store) -> None:
    store.submit(resource=None)
    before = store.everything()
    for lock_at in (LockAt.SUBMIT, LockAt.CLAIM):
        with pytest.raises(CheckViolation):
            store.jobs.submit(store.session, request(resource=None, lock_at=lock_at), "test")
    assert store.everything() == before


def test_a_claim_steps_over_a_locked_resource_and_takes_the_next_job(store: Store) -> None:
    for _ in range(5):
        store.submit(resource="busy", lock_at=LockAt.CLAIM, priority=9)
    free = store.submit(resource="free", lock_at=LockAt.CLAIM)
    assert store.claim_one().resource == "busy"
    assert store.claim_one().job_id == free


@pytest.mark.parametrize("lock_at", [LockAt.SUBMIT, LockAt.CLAIM])
def test_a_lock_of_any_kind_stops_a_job_that_locks_at_claim(store: Store, lock_at: LockAt) -> None:
    store.submit(resource="r", lock_at=lock_at, priority=1)
    waiting = store.submit(resource="r", lock_at=LockAt.CLAIM)
    mine = store.claim(5)
    assert [one.job_id == waiting for one in mine] == [False]
    assert store.claim(5) == []
    store.jobs.finish(store.session, mine[0], JobStatus.DONE, actor="test")
    assert store.claim_one().job_id == waiting


def test_of_two_jobs_of_one_resource_in_a_batch_the_more_urgent_is_taken(store: Store) -> None:
    store.submit(resource="r", lock_at=LockAt.CLAIM)
    urgent = store.submit(resource="r", lock_at=LockAt.CLAIM, priority=5)
    other = store.submit(resource="s", lock_at=LockAt.CLAIM, priority=-1)
    assert [one.job_id for one in store.claim(3)] == [urgent, other]
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
                assert store.claim_one(session=first).resource == "r"
                late = pool.submit(store.claim, session=second)
                while not store.value("SELECT cardinality(pg_blocking_pids(%s))", pid):
                    assert not late.done()
            assert [one.job_id for one in late.result()] == [free]


def test_batch_claimers_at_once_with_overlapping_resources_never_deadlock_nor_share(
    store: Store,
) -> None:
    rng, claimers, resources = Random(5), 6, 7
    total = 150
    for _ in range(total):
        number = rng.randrange(resources)
        store.submit(resource=f"r{number}", lock_at=LockAt.CLAIM, priority=rng.randrange(3))
    start, at_work = Barrier(claimers), Lock()
    worked_on: set[str | None] = set()

    def work(number: int) -> list[Claim]:
        done: list[Claim] = []
        with store.plane.connect() as own:
            start.wait()
            while store.value("SELECT 1 + count(*) FROM job_queue") > 1:
                mine = store.claim(4, worker_id=f"worker {number}", session=own)
                held = own.execute(
                    "SELECT count(*) FROM tidegate_control.table_locks WHERE job_id = ANY(%s)",
                    ([one.job_id for one in mine],),
                ).fetchone()
                assert held == (len(mine),)
                resources_of_mine = {one.resource for one in mine}
                assert len(resources_of_mine) == len(mine)
                with at_work:
                    assert not worked_on & resources_of_mine
                    worked_on.update(resources_of_mine)
                with at_work:
                    worked_on.difference_update(resources_of_mine)
                endings = [Ending(one, JobStatus.DONE) for one in mine]
                ended = store.jobs.finish_many(own, endings[::-1], actor="test")
                assert len(ended) == len(mine)
                done += mine
        return done

    with ThreadPoolExecutor(claimers) as pool:
        claims = [one for some in pool.map(work, range(claimers)) for one in some]
    assert len(claims) == len({one.job_id for one in claims}) == total
    assert len({one.fence for one in claims}) == total
    assert store.locked() == set()
