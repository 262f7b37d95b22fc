"""A worker's turn: what it has done is finished and what is next is claimed, in one statement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.job_store import RESOURCE, Store, open_store
from tidegate.control.turns import Turns
from tidegate.model.job import Claim, Ending, JobStatus, LockAt
from tidegate.postgres.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as made:
        yield made


@pytest.fixture
def store(opened: Store) -> Store:
    opened.clean()
    return opened


@pytest.fixture
def turns(store: Store) -> Turns:
    return Turns(store.plane, store.worker().worker_id, "shop", ("sync",), 60)


def done(claim: Claim) -> Ending:
    return Ending(claim, JobStatus.DONE, result={"rows": 1})


def test_jobs_pass_through_turn_by_turn_in_their_order(store: Store, turns: Turns) -> None:
    ids = [store.submit() for _ in range(5)]
    seen, endings = [], []
    while True:
        turn = turns.take(store.session, endings, 2)
        assert turn.won == {ending.claim.attempt_id for ending in endings}
        seen += [claim.job_id for claim in turn.claims]
        endings = [done(claim) for claim in turn.claims]
        if not endings:
            break
    assert seen == ids
    records = [store.get(job_id) for job_id in ids]
    assert {(one.status, one.result["rows"]) for one in records if one.result} == {("done", 1)}
    assert len(records) == 5


def test_with_nothing_to_claim_the_endings_are_still_written(store: Store, turns: Turns) -> None:
    job_id = store.submit()
    (mine,) = turns.take(store.session, [], 1).claims
    turn = turns.take(store.session, [done(mine)], 1)
    assert (turn.won, turn.claims) == ({mine.attempt_id}, [])
    assert store.get(job_id).status is JobStatus.DONE


def test_without_a_free_place_nothing_is_claimed(store: Store, turns: Turns) -> None:
    store.submit()
    (mine,) = turns.take(store.session, [], 1).claims
    store.submit()
    assert turns.take(store.session, [done(mine)], 0).claims == []


def test_a_stale_ending_is_left_out_and_the_claim_goes_on(store: Store, turns: Turns) -> None:
    first = store.submit()
    (mine,) = turns.take(store.session, [], 1).claims
    assert store.jobs.give_back(store.session, mine, actor="test")
    turn = turns.take(store.session, [done(mine)], 1)
    assert turn.won == set()
    assert [claim.job_id for claim in turn.claims] == [first]
    assert turn.claims[0].attempt_id != mine.attempt_id
    assert store.get(first).status is JobStatus.RUNNING


def test_what_an_ending_unlocks_is_claimed_in_the_next_turn(store: Store, turns: Turns) -> None:
    store.submit(lock_at=LockAt.CLAIM, resource=RESOURCE)
    second = store.submit(lock_at=LockAt.CLAIM, resource=RESOURCE)
    (mine,) = turns.take(store.session, [], 5).claims
    between = turns.take(store.session, [done(mine)], 5)
    assert between.won == {mine.attempt_id}
    assert between.claims == []
    assert [claim.job_id for claim in turns.take(store.session, [], 5).claims] == [second]


def test_endings_with_and_without_errors_and_results_keep_their_own(
    store: Store, turns: Turns
) -> None:
    for _ in range(3):
        store.submit()
    claims = turns.take(store.session, [], 3).claims
    endings = [
        Ending(claims[0], JobStatus.FAILED, error='it\'s {broken}, "quoted"'),
        Ending(claims[1], JobStatus.DONE),
        Ending(claims[2], JobStatus.DONE, result={"a": None}),
    ]
    assert len(turns.take(store.session, endings, 1).won) == 3
    found = [store.get(claim.job_id) for claim in claims]
    assert [(one.status, one.error, one.result) for one in found] == [
        ("failed", 'it\'s {broken}, "quoted"', None),
        ("done", None, None),
        ("done", None, {"a": None}),
    ]
