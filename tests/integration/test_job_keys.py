"""Unique jobs and idempotent submits, by one caller and by many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from integration.job_store import Store, open_store, request
from tidegate.errors import UsageError
from tidegate.model.job import JobRequest, JobStatus, LockAt, Submission, Submitted
from tidegate.postgres.embedded import EmbeddedServer

SUBMITTERS = 12


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as store:
        yield store


@pytest.fixture
def store(opened: Store) -> Store:
    opened.clean()
    return opened


def at_once(store: Store, ask: Callable[[int], JobRequest]) -> list[Submission]:
    """Twelve submitters that start together, each on a session of its own."""
    start = Barrier(SUBMITTERS)

    def submit(number: int) -> Submission:
        with store.plane.connect() as own:
            start.wait()
            return store.jobs.submit(own, ask(number), "test")

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        return list(pool.map(submit, range(SUBMITTERS)))


def end(store: Store) -> None:
    assert store.jobs.finish(store.session, store.claim_one(), JobStatus.DONE, actor="test")


@pytest.mark.parametrize("lock_at", LockAt)
def test_a_unique_key_is_free_again_when_its_job_has_ended(store: Store, lock_at: LockAt) -> None:
    unique = request(unique_key="daily", lock_at=lock_at)
    first = store.jobs.submit(store.session, unique, "test")
    assert first.outcome is Submitted.QUEUED
    before = store.everything()
    again = store.jobs.submit(store.session, unique, "test")
    assert again == Submission(Submitted.WAITING_ALREADY, first.job_id)
    assert store.everything() == before
    other = request(unique_key="daily", project="bank", resource="another")
    assert store.jobs.submit(store.session, other, "test").outcome is Submitted.QUEUED
    end(store)
    third = store.jobs.submit(store.session, unique, "test")
    assert third.outcome is Submitted.QUEUED
    assert third.job_id != first.job_id


def test_a_unique_key_is_free_again_when_its_job_was_dropped(store: Store) -> None:
    job_id = store.submit(unique_key="daily")
    assert store.jobs.drop_pending(store.session, job_id, "test", "no")
    store.submit(unique_key="daily")


@pytest.mark.parametrize("lock_at", LockAt)
def test_of_submitters_at_once_with_one_unique_key_one_queues_and_all_get_its_job(
    store: Store, lock_at: LockAt
) -> None:
    found = at_once(store, lambda number: request(unique_key="daily", lock_at=lock_at))
    assert [one.outcome for one in found].count(Submitted.QUEUED) == 1
    assert {one.outcome for one in found} == {Submitted.QUEUED, Submitted.WAITING_ALREADY}
    assert len({one.job_id for one in found}) == 1
    assert store.value("SELECT count(*) FROM jobs") == 1


@pytest.mark.parametrize("lock_at", LockAt)
def test_the_same_request_with_the_same_key_gets_the_same_job_even_when_it_has_ended(
    store: Store, lock_at: LockAt
) -> None:
    asked = request(idempotency_key="k1", lock_at=lock_at, payload={"days": (1, 2), "at": 1.0})
    first = store.jobs.submit(store.session, asked, "test")
    for _ in range(2):
        before = store.everything()
        again = store.jobs.submit(store.session, asked, "somebody else")
        assert again == Submission(Submitted.REPEATED, first.job_id)
        assert store.everything() == before
        if store.jobs.depth(store.session):
            end(store)


@pytest.mark.parametrize(
    "change",
    [{"name": "items"}, {"kind": "vacuum"}, {"resource": "r"}, {"payload": {}}],
    ids=lambda change: next(iter(change)),
)
def test_another_request_with_a_used_key_is_refused_and_nothing_changes(
    store: Store, change: dict[str, object]
) -> None:
    job_id = store.submit(idempotency_key="k1")
    before = store.everything()
    with pytest.raises(UsageError, match=f"'k1' was given to job {job_id}") as raised:
        store.jobs.submit(store.session, request(idempotency_key="k1", **change), "test")
    assert "use a new key" in str(raised.value)
    assert store.everything() == before
    in_another = request(idempotency_key="k1", project="bank", **change)
    assert store.jobs.submit(store.session, in_another, "test").outcome is Submitted.QUEUED


@pytest.mark.parametrize("lock_at", LockAt)
def test_of_submitters_at_once_with_one_idempotency_key_all_get_one_job(
    store: Store, lock_at: LockAt
) -> None:
    found = at_once(store, lambda number: request(idempotency_key="k", lock_at=lock_at))
    assert [one.outcome for one in found].count(Submitted.QUEUED) == 1
    assert {one.outcome for one in found} == {Submitted.QUEUED, Submitted.REPEATED}
    assert len({one.job_id for one in found}) == 1
    assert store.value("SELECT count(*) FROM jobs") == 1
    assert store.value("SELECT count(*) FROM job_queue") == 1


def test_a_refusal_inside_a_transaction_leaves_that_transaction_whole(store: Store) -> None:
    store.submit(unique_key="daily")
    with store.session.transaction():
        store.execute("INSERT INTO cursor_observations VALUES ('p', now(), '1')")
        again = store.jobs.submit(store.session, request(unique_key="daily"), "test")
        assert again.outcome is Submitted.WAITING_ALREADY
        store.submit()
    assert store.value("SELECT count(*) FROM jobs") == 2
    assert store.execute("DELETE FROM cursor_observations RETURNING value") == [("1",)]
