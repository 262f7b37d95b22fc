"""Named resources: at most so many jobs at once, whoever claims, and no slower for the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import UUID

import pytest

from integration.job_store import Store, open_store, request
from tidegate.control.bulk import submit_many
from tidegate.control.limits import Limits, Used
from tidegate.control.turns import Turns
from tidegate.errors import UsageError
from tidegate.model.job import Claim, Ending, JobStatus, LockAt
from tidegate.postgres.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Iterator[Store]:
    Limits(shared.plane, "shop").declare(shared.session, {"shop": 2, "disk": 1})
    yield shared
    shared.clean()


def ids(claims: list[Claim]) -> list[UUID]:
    return [claim.job_id for claim in claims]


def finish(store: Store, claim: Claim) -> None:
    assert store.jobs.finish(store.session, claim, JobStatus.DONE, actor="w")


def test_a_job_waits_while_its_resource_has_no_place_and_others_pass(store: Store) -> None:
    limited = [store.submit(limits=("shop",)) for _ in range(4)]
    free = store.submit()
    claims = store.claim(10)
    assert sorted(ids(claims)) == sorted([*limited[:2], free])
    assert store.claim(10) == []
    finish(store, claims[-1])
    assert ids(store.claim(10)) == [limited[2]]


def test_of_those_with_limits_the_most_urgent_goes_first(store: Store) -> None:
    low = store.submit(limits=("disk",), priority=-5)
    high = store.submit(limits=("disk",), priority=5)
    middle = store.submit(limits=("disk",))
    order = []
    for _ in range(3):
        (claim,) = store.claim(10)
        order.append(claim.job_id)
        finish(store, claim)
    assert order == [high, middle, low]


def test_a_job_needs_a_place_of_each_of_its_resources(store: Store) -> None:
    both = store.submit(limits=("shop", "disk"))
    disk, shop = store.submit(limits=("disk",)), store.submit(limits=("shop",))
    claims = store.claim(10)
    assert sorted(ids(claims)) == sorted([both, shop])
    finish(store, next(claim for claim in claims if claim.job_id == both))
    assert ids(store.claim(10)) == [disk]


def test_a_resource_that_nobody_has_declared_has_one_place(store: Store) -> None:
    first = store.submit(limits=("unheard of",))
    store.submit(limits=("unheard of",))
    assert ids(store.claim(10)) == [first]


def test_the_places_of_one_project_are_not_those_of_another(store: Store) -> None:
    Limits(store.plane, "bank").declare(store.session, {"shop": 1})
    for project in ("shop", "bank"):
        for _ in range(3):
            store.submit(project=project, limits=("shop",))
    assert len(store.claim(10, project="bank")) == 1
    assert len(store.claim(10)) == 2


def test_more_places_count_at_once_and_fewer_let_what_runs_end(store: Store) -> None:
    for _ in range(6):
        store.submit(limits=("shop",))
    limits = Limits(store.plane, "shop")
    assert len(store.claim(10)) == 2
    limits.declare(store.session, {"shop": 4})
    claims = store.claim(10)
    assert len(claims) == 2
    limits.declare(store.session, {"shop": 3})
    assert limits.used(store.session) == [Used("shop", 3, 4)]
    finish(store, claims[0])
    assert store.claim(10) == []


def test_a_job_that_is_given_back_or_reclaimed_gives_its_place_back(store: Store) -> None:
    first, second = store.submit(limits=("disk",)), store.submit(limits=("disk",))
    claim = store.claim_one()
    assert store.jobs.give_back(store.session, claim, actor="w", error="oh", delay_seconds=60)
    worker = store.worker()
    (again,) = store.claim(10, worker_id=worker.worker_id)
    assert (claim.job_id, again.job_id) == (first, second)
    store.kill(worker.worker_id)
    (dead,) = store.dead.list(store.session)
    assert store.dead.reclaim(store.session, dead, "sweeper")
    assert store.claim_one().job_id == second


def test_a_resource_and_a_table_are_taken_together_or_not_at_all(store: Store) -> None:
    store.submit(limits=("shop",), lock_at=LockAt.CLAIM, resource="t")
    store.submit(limits=("shop",), lock_at=LockAt.CLAIM, resource="t")
    other = store.submit(limits=("shop",), lock_at=LockAt.CLAIM, resource="u")
    claims = store.claim(10)
    assert len(claims) == 2
    assert other in ids(claims)
    assert store.locked() == {"t", "u"}
    for claim in claims:
        finish(store, claim)
    assert len(store.claim(10)) == 1


def test_a_turn_finishes_and_claims_within_the_limits(store: Store) -> None:
    jobs = [store.submit(limits=("disk",)) for _ in range(3)]
    turns = Turns(store.plane, "w", "shop", ("sync",), 60.0)
    order: list[UUID] = []
    claims = turns.take(store.session, [], 8).claims
    while claims:
        assert len(claims) == 1
        order += ids(claims)
        endings = [Ending(claim, JobStatus.DONE) for claim in claims]
        turn = turns.take(store.session, endings, 8)
        assert turn.won == {claim.attempt_id for claim in claims}
        claims = turn.claims
    assert order == jobs


def test_one_that_waits_for_a_place_keeps_no_worker_awake(store: Store) -> None:
    store.submit(limits=("disk",))
    store.submit(limits=("disk",))
    assert store.claim_one()
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"]) is None


def test_a_place_that_becomes_free_is_announced(store: Store) -> None:
    store.submit(limits=("disk",))
    claim = store.claim_one()
    with store.plane.connect() as listening:
        listening.execute(f"LISTEN {store.plane.channel('jobs')}")  # type: ignore[arg-type]
        finish(store, claim)
        assert [told.payload for told in listening.notifies(timeout=5, stop_after=1)] == [""]


def test_a_retry_has_the_limits_of_what_it_retries(store: Store) -> None:
    assert store.get(store.submit(limits=("shop", "disk"))).limits == ["shop", "disk"]


def test_many_jobs_at_once_have_no_limits(store: Store) -> None:
    with pytest.raises(UsageError, match="limits"):
        submit_many(store.session, store.plane, [request(limits=("shop",))], "test")


@pytest.mark.parametrize("by_turns", [False, True], ids=["claims", "turns"])
def test_however_many_claim_at_once_no_more_than_the_places_are_taken(
    store: Store, by_turns: bool
) -> None:
    """Ten claimers, each in a session of its own; after every claim the database is asked."""
    total, claimers = 120, 10
    for number in range(total):
        store.submit(limits=("shop",) if number % 3 else ("shop", "disk"))
    start, seen, done = threading.Barrier(claimers), [], []
    errors: list[BaseException] = []
    count = (
        "SELECT count(*), count(*) FILTER (WHERE 'disk' = ANY(limits))"
        " FROM tidegate_control.job_queue WHERE claimed_by IS NOT NULL"
    )

    def work(number: int) -> None:
        turns = Turns(store.plane, f"w{number}", "shop", ("sync",), 60.0)
        try:
            with store.plane.connect() as session:
                start.wait()
                endings: list[Ending] = []
                while len(done) < total:
                    if by_turns:
                        claims = turns.take(session, endings, 3).claims
                        done.extend(endings)
                    else:
                        claims = store.claim(3, worker_id=f"w{number}", session=session)
                    seen.append(session.execute(count).fetchone())
                    endings = [Ending(claim, JobStatus.DONE) for claim in claims]
                    if not by_turns and endings:
                        store.jobs.finish_many(session, endings, actor="w")
                        done.extend(endings)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(claimers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len({ending.claim.job_id for ending in done}) == len(done) == total
    assert max(all_ for all_, _ in seen) == 2
    assert max(disk for _, disk in seen) == 1
