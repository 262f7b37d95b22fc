"""Jobs that need others: they wait, are set free when those are done, and end when they fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from integration.job_store import Store, open_store
from tidegate.control.job_lists import JobLists
from tidegate.control.needs import Needs, Settled
from tidegate.control.turns import Turns
from tidegate.model.job import Claim, Ending, JobStatus
from tidegate.model.job_state import JobState
from tidegate.postgres.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Iterator[Store]:
    yield shared
    shared.clean()


def submit(store: Store, name: str, *needs: UUID) -> UUID:
    return store.submit(name=name, needs=needs)


def names(claims: list[Claim]) -> list[str]:
    return sorted(claim.name for claim in claims)


def end(store: Store, claim: Claim, status: JobStatus = JobStatus.DONE) -> None:
    error = None if status is JobStatus.DONE else "it broke"
    assert store.jobs.finish(store.session, claim, status, actor="w", error=error)


def statuses(store: Store) -> dict[str, str]:
    return dict(store.execute("SELECT name, status FROM jobs"))  # type: ignore[arg-type]


def test_a_chain_is_worked_one_after_the_other(store: Store) -> None:
    a = submit(store, "a")
    b = submit(store, "b", a)
    submit(store, "c", b)
    for name in "abc":
        claims = store.claim(10)
        assert names(claims) == [name]
        end(store, claims[0])
    assert store.value("SELECT count(*) FROM job_needs") == 0


def test_a_diamond_waits_for_both_of_its_sides(store: Store) -> None:
    top = submit(store, "top")
    left, right = submit(store, "left", top), submit(store, "right", top)
    submit(store, "bottom", left, right)
    end(store, store.claim_one())
    sides = store.claim(10)
    assert names(sides) == ["left", "right"]
    end(store, sides[0])
    assert store.claim(10) == []
    end(store, sides[1])
    assert names(store.claim(10)) == ["bottom"]


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_whoever_needs_a_job_that_failed_fails_with_its_name(
    store: Store, status: JobStatus
) -> None:
    a, other = submit(store, "a"), submit(store, "other")
    b = submit(store, "b", a, other)
    c = submit(store, "c", b)
    unrelated = submit(store, "unrelated", other)
    claim = next(claim for claim in store.claim(10) if claim.job_id == a)
    end(store, claim, status)
    word = "was cancelled" if status is JobStatus.CANCELLED else "failed"
    assert store.get(b).error == f"requires a, which {word}"
    assert store.get(c).error == "requires b, which failed"
    assert (store.get(b).status, store.get(c).status) == (JobStatus.FAILED, JobStatus.FAILED)
    assert store.get(unrelated).status is JobStatus.PENDING
    assert store.value("SELECT count(*) FROM job_queue WHERE job_id = ANY(%s)", [b, c]) == 0
    assert store.audit(b)[-1] == "failed"


def test_a_job_that_is_to_be_retried_has_not_failed_yet(store: Store) -> None:
    a = submit(store, "a")
    submit(store, "b", a)
    claim = store.claim_one()
    assert store.jobs.give_back(store.session, claim, actor="w", error="once more")
    assert statuses(store) == {"a": "pending", "b": "pending"}
    end(store, store.claim_one())
    assert names(store.claim(10)) == ["b"]


def test_a_job_that_was_given_up_or_lost_its_last_worker_fails_those_behind_it(
    store: Store,
) -> None:
    dropped, crashed = submit(store, "dropped"), store.submit(name="crashed", max_attempts=1)
    behind, after = submit(store, "behind", dropped), submit(store, "after", crashed)
    assert store.jobs.drop_pending(store.session, dropped, "ana", "not needed")
    assert store.get(behind).error == "requires dropped, which was cancelled"
    worker = store.worker()
    store.claim_one(worker_id=worker.worker_id)
    store.kill(worker.worker_id)
    (dead,) = store.dead.list(store.session)
    store.dead.reclaim(store.session, dead, "sweeper")
    assert store.get(after).error == "requires crashed, which failed"


def test_a_turn_sets_free_what_waited_for_its_endings(store: Store) -> None:
    a = submit(store, "a")
    b = submit(store, "b", a)
    submit(store, "c", b)
    turns = Turns(store.plane, "w", "shop", ("sync",), 60.0)
    claims = turns.take(store.session, [], 4).claims
    for name in "abc":
        assert names(claims) == [name]
        endings = [Ending(claim, JobStatus.DONE) for claim in claims]
        claims = turns.take(store.session, endings, 4).claims
    assert claims == []


def test_who_is_killed_before_telling_the_others_leaves_that_to_a_scheduler(store: Store) -> None:
    """The end is written, and then nothing more: as after a SIGKILL between the two."""
    a, x = submit(store, "a"), submit(store, "x")
    b, y = submit(store, "b", a), submit(store, "y", x)
    z = submit(store, "z", y)
    submit(store, "gone", uuid4())
    store.execute("DELETE FROM job_queue WHERE job_id = ANY(%s)", [a, x])
    store.execute("UPDATE jobs SET status = 'done' WHERE job_id = %s", a)
    store.execute("UPDATE jobs SET status = 'failed' WHERE job_id = %s", x)
    needs = Needs(store.plane)
    assert needs.settle_all(store.session) == Settled(released=1, failed=3)
    assert names(store.claim(10)) == ["b"]
    assert [store.get(job).status for job in (b, y, z)] == ["running", "failed", "failed"]
    assert needs.settle_all(store.session) == Settled()
    # The need was met, and the job not yet set free.
    c = submit(store, "c", a)
    store.execute("DELETE FROM job_needs WHERE job_id = %s", c)
    assert needs.settle_all(store.session) == Settled(released=1)
    assert names(store.claim(10)) == ["c"]


def test_a_job_that_waits_for_others_says_so_and_keeps_no_worker_awake(store: Store) -> None:
    a = submit(store, "a")
    b = submit(store, "b", a)
    assert store.claim_one()
    assert store.jobs.depth(store.session) == 0
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"]) is None
    assert Needs(store.plane).of(store.session, b) == [(a, "a", "running")]
    found = JobLists(store.plane).newest(store.session, "shop")
    lines = {line.name: line.state for line in found}
    assert lines["b"] is JobState.NEEDS
    assert store.get(b).visible_at is None


def test_two_who_end_at_once_set_free_whoever_waits_for_both(store: Store) -> None:
    """Without anybody looking after it: each pair ends in two sessions at the same moment."""
    for _ in range(40):
        left, right = submit(store, "left"), submit(store, "right")
        bottom = submit(store, "bottom", left, right)
        claims = store.claim(2)
        barrier = threading.Barrier(2)

        def finish(claim: Claim, barrier: threading.Barrier = barrier) -> None:
            with store.plane.connect() as session:
                barrier.wait()
                store.jobs.finish(session, claim, JobStatus.DONE, actor="w")

        threads = [threading.Thread(target=finish, args=(claim,)) for claim in claims]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (claim,) = store.claim(10)
        assert claim.job_id == bottom
        end(store, claim)
