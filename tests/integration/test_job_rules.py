"""Which job comes next, who may write for it, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from integration.job_store import RESOURCE, Store, open_store, request
from tidegate.control.dead import DeadAttempt
from tidegate.control.tokens import Tokens
from tidegate.errors import UsageError
from tidegate.model.backoff import Backoff
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


def ids(claims: list[Claim]) -> list[UUID]:
    return [claim.job_id for claim in claims]


def make_visible(store: Store) -> None:
    store.execute("UPDATE job_queue SET visible_at = now() - interval '1 ms'")


# Which job comes next


def test_urgent_jobs_come_first_and_equal_ones_in_the_order_they_were_submitted(
    store: Store,
) -> None:
    low = [store.submit(priority=-1) for _ in range(3)]
    normal = [store.submit() for _ in range(3)]
    high = [store.submit(priority=7) for _ in range(3)]
    assert ids(store.claim(4)) == [*high, normal[0]]
    assert [store.claim_one().job_id for _ in range(2)] == normal[1:]
    assert ids(store.claim(9)) == low
    assert store.claim() == []


def test_jobs_of_one_transaction_come_in_the_order_they_were_submitted(store: Store) -> None:
    with store.session.transaction():
        submitted = [store.submit() for _ in range(20)]
    assert ids(store.claim(20)) == submitted


def test_a_job_is_not_taken_before_its_time(store: Store) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    later, delayed = store.submit(visible_at=soon, priority=9), store.submit(delay_seconds=3600)
    ready = store.submit(visible_at=soon - timedelta(hours=2))
    assert store.jobs.depth(store.session) == 1
    assert ids(store.claim(9)) == [ready]
    assert store.get(later).visible_at == soon
    waits = store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"])
    assert waits is not None
    assert 3500 < waits <= 3600
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["x"]) is None
    make_visible(store)
    assert ids(store.claim(9)) == [later, delayed]


def test_a_job_is_taken_by_its_id_before_its_time(store: Store) -> None:
    later = store.submit(delay_seconds=3600)
    found = store.jobs.claim(store.session, "worker", later, lease_seconds=60)
    assert found is not None
    assert found.job_id == later


def test_only_jobs_of_the_project_and_of_the_kinds_are_taken(store: Store) -> None:
    store.submit(project="bank")
    vacuum, sync = store.submit(kind="vacuum"), store.submit()
    assert ids(store.claim(9, kinds=["vacuum"])) == [vacuum]
    assert store.claim(9, kinds=[]) == []
    assert store.claim(9, project="else") == []
    assert ids(store.claim(9, kinds=["vacuum", "sync"])) == [sync]
    assert len(store.claim(9, project="bank")) == 1


def test_several_at_a_time_are_as_many_as_asked_for_each_with_its_own_attempt(
    store: Store,
) -> None:
    submitted = [store.submit() for _ in range(5)]
    found = store.claim(3)
    assert ids(found) == submitted[:3]
    assert len({one.attempt_id for one in found}) == 3
    assert sorted({one.fence for one in found}) == [one.fence for one in found]
    assert ids(store.claim(3)) == submitted[3:]


@pytest.mark.parametrize(("limit", "lease"), [(0, 60), (-1, 60), (1, 0), (1, -5)])
def test_a_claim_of_nothing_or_for_no_time_is_refused(
    store: Store, limit: int, lease: float
) -> None:
    store.submit()
    before = store.everything()
    with pytest.raises(UsageError):
        store.claim(limit, lease=lease)
    assert store.everything() == before


# Who may write


def stale_and_new(store: Store) -> tuple[Claim, Claim]:
    """An attempt that was replaced, and the one that replaced it."""
    job_id = store.submit()
    stale = store.claim_one()
    store.expire(job_id)
    (dead,) = store.dead.list(store.session)
    assert store.dead.reclaim(store.session, dead, "sweeper")
    return stale, store.claim_one()


def test_a_stale_attempt_writes_nothing_at_all(store: Store) -> None:
    stale, new = stale_and_new(store)
    assert new.fence > stale.fence
    before = store.everything()
    session, jobs = store.session, store.jobs
    assert not jobs.store_plan(session, stale, {"n": 1})
    assert not jobs.record_progress(session, stale, {"n": 1})
    assert not jobs.record_action(session, stale, "stage", {})
    assert not jobs.finish(session, stale, JobStatus.DONE, actor="stale")
    assert not jobs.give_back(session, stale, actor="stale")
    assert not jobs.give_back(session, stale, actor="stale", error="late")
    assert jobs.beat(session, "gone", [stale], 60) == set()
    assert Tokens(jobs.plane).reissue(session, stale, 1) is None
    assert store.everything() == before


def test_the_current_attempt_writes_plan_progress_and_actions_in_order(store: Store) -> None:
    _, new = stale_and_new(store)
    session, jobs = store.session, store.jobs
    assert jobs.store_plan(session, new, {"update_id": "u"})
    assert jobs.record_progress(session, new, {"rows": 5})
    assert all(jobs.record_action(session, new, name, {"n": name}) for name in ("b", "a"))
    record = store.get(new.job_id)
    assert (record.plan, record.progress) == ({"update_id": "u"}, {"rows": 5})
    rows = store.execute("SELECT position, action, attempt_id FROM job_actions ORDER BY 1")
    assert rows == [(1, "b", new.attempt_id), (2, "a", new.attempt_id)]
    assert jobs.store_plan(session, new, None)
    assert store.get(new.job_id).plan is None


def test_after_its_end_a_job_takes_no_more_actions(store: Store) -> None:
    store.submit()
    mine = store.claim_one()
    assert store.jobs.finish(store.session, mine, JobStatus.DONE, actor="test")
    assert not store.jobs.record_action(store.session, mine, "late", {})


def test_of_many_endings_the_stale_ones_are_left_out(store: Store) -> None:
    stale, new = stale_and_new(store)
    for _ in range(3):
        store.submit()
    done, failed, given = store.claim(3)
    assert store.jobs.give_back(store.session, given, actor="test")
    unknown = Claim(uuid4(), "x" * 32, 1, "sync", "n", None, {}, None, 1)
    endings = [
        Ending(stale, JobStatus.FAILED, "late"),
        Ending(done, JobStatus.DONE, None, {"rows": 1}),
        Ending(given, JobStatus.DONE),
        Ending(failed, JobStatus.FAILED, "broken"),
        Ending(unknown, JobStatus.DONE),
    ]
    ended = store.jobs.finish_many(store.session, endings, actor="test")
    assert ended == {done.attempt_id, failed.attempt_id}
    assert store.get(done.job_id).result == {"rows": 1}
    record = store.get(failed.job_id)
    assert (record.status, record.error, record.error_count) == (JobStatus.FAILED, "broken", 1)
    assert store.get(given.job_id).status is JobStatus.PENDING
    assert store.get(new.job_id).attempt_id == new.attempt_id
    assert store.outcomes(stale.job_id) == [("lost", None), (None, None)]
    assert store.outcomes(failed.job_id) == [("failed", "broken")]
    assert store.jobs.finish_many(store.session, endings, actor="test") == set()


# How an attempt gives its job back, and how a job ends


def test_after_an_error_a_job_waits_and_keeps_the_error(store: Store) -> None:
    job_id = store.submit()
    mine = store.claim_one()
    assert store.jobs.give_back(
        store.session, mine, actor="test", error="broken", delay_seconds=3600
    )
    record = store.get(job_id)
    assert (record.status, record.error, record.error_count) == (JobStatus.PENDING, "broken", 1)
    assert (record.crash_count, record.attempt_id, record.claimed_at) == (0, None, None)
    assert record.visible_at is not None
    assert record.visible_at > datetime.now(UTC) + timedelta(seconds=3000)
    assert store.claim() == []
    assert store.outcomes(job_id) == [("error", "broken")]
    assert store.audit(job_id) == ["submitted", "claimed", "to be retried"]
    make_visible(store)
    again = store.claim_one()
    assert (again.attempt_count, again.error_count) == (2, 1)


def test_a_worker_that_leaves_gives_its_job_back_at_once_and_no_error_is_counted(
    store: Store,
) -> None:
    job_id = store.submit()
    assert store.jobs.give_back(store.session, store.claim_one(), actor="test")
    record = store.get(job_id)
    assert (record.status, record.error, record.error_count) == (JobStatus.PENDING, None, 0)
    assert store.outcomes(job_id) == [("given back", None)]
    assert store.audit(job_id)[-1] == "given back"
    assert store.claim_one().job_id == job_id


@pytest.mark.parametrize("lock_at", LockAt)
def test_giving_back_frees_only_a_lock_that_was_taken_by_the_claim(
    store: Store, lock_at: LockAt
) -> None:
    store.submit(lock_at=lock_at)
    assert store.locked() == ({RESOURCE} if lock_at is LockAt.SUBMIT else set())
    mine = store.claim_one()
    assert store.locked() == (set() if lock_at is LockAt.NEVER else {RESOURCE})
    assert store.jobs.give_back(store.session, mine, actor="test")
    assert store.locked() == ({RESOURCE} if lock_at is LockAt.SUBMIT else set())


def test_waits_grow_from_one_error_to_the_next(store: Store) -> None:
    job_id, waits = store.submit(), []
    for _ in range(4):
        mine = store.claim_one()
        wait = Backoff().seconds(mine.error_count + 1, 1.0)
        store.jobs.give_back(store.session, mine, actor="test", error="x", delay_seconds=wait)
        visible_at = store.get(job_id).visible_at
        now = store.value("SELECT now()")
        assert visible_at is not None
        waits.append(round((visible_at - now).total_seconds()))
        make_visible(store)
    assert waits == [5, 10, 20, 40]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("lock_at", LockAt)
def test_a_job_whose_workers_all_die_ends_and_is_kept(
    store: Store, published: bool, lock_at: LockAt
) -> None:
    job_id = store.submit(max_attempts=3, lock_at=lock_at)
    for crashes in (1, 2, 3):
        mine = store.claim_one()
        assert store.jobs.record_progress(store.session, mine, {"rows": crashes})
        store.expire(job_id)
        (dead,) = store.dead.list(store.session)
        assert dead.crash_count == crashes - 1
        assert store.dead.reclaim(store.session, dead, "sweeper", published=published)
        assert store.get(job_id).crash_count == crashes
    record = store.get(job_id)
    assert record.status is (JobStatus.DONE if published else JobStatus.FAILED)
    assert record.error == (None if published else "its worker died in every attempt")
    assert record.result == ({"rows": 3} if published else None)
    assert record.finished_at is not None
    assert store.locked() == set()
    assert store.audit(job_id)[-2:] == ["reclaimed", record.status.value]
    assert store.outcomes(job_id) == [("lost", None)] * 3
    assert store.execute("SELECT * FROM job_queue") == []


def test_errors_do_not_count_as_crashes_nor_crashes_as_errors(store: Store) -> None:
    job_id = store.submit(max_attempts=2)
    for _ in range(5):
        store.jobs.give_back(store.session, store.claim_one(), actor="test", error="x")
    store.claim_one()
    store.expire(job_id)
    (dead,) = store.dead.list(store.session)
    assert store.dead.reclaim(store.session, dead, "sweeper", delay_seconds=3600)
    record = store.get(job_id)
    assert (record.status, record.error_count, record.crash_count) == (JobStatus.PENDING, 5, 1)
    assert store.claim() == []


def test_a_worker_without_a_place_on_the_register_is_dead_and_one_that_beats_is_not(
    store: Store,
) -> None:
    store.submit()
    store.submit()
    worker = store.worker()
    kept = store.claim_one(worker_id=worker.worker_id)
    lost = store.claim_one(worker_id="never registered")
    assert [dead.attempt_id for dead in store.dead.list(store.session)] == [lost.attempt_id]
    store.expire(kept.job_id)
    assert len(store.dead.list(store.session, project="shop")) == 2
    assert store.dead.list(store.session, project="bank") == []
    mine = [kept, lost]
    assert store.jobs.beat(store.session, worker.worker_id, mine, 60) == {
        kept.attempt_id,
        lost.attempt_id,
    }
    wrong = DeadAttempt(kept.job_id, kept.attempt_id, "sync", RESOURCE, {}, None, 0, max_attempts=5)
    assert not store.dead.reclaim(store.session, wrong, "sweeper")


# Drain


def test_while_draining_nothing_is_taken_in_and_what_is_there_is_worked_off(store: Store) -> None:
    waiting = store.submit(idempotency_key="k")
    assert store.plane.start_draining(store.session, "ops")
    assert not store.plane.start_draining(store.session, "another")
    draining = store.plane.draining(store.session)
    assert draining is not None
    assert draining.by == "ops"
    before = store.everything()
    for options in ({}, {"lock_at": LockAt.SUBMIT}, {"unique_key": "u"}, {"retry_of": waiting}):
        refused = store.jobs.submit(store.session, request(**options), "test")
        assert refused == Submission(Submitted.DRAINING)
    repeated = store.jobs.submit(store.session, request(idempotency_key="k"), "test")
    assert repeated == Submission(Submitted.REPEATED, waiting)
    assert store.everything() == before
    mine = store.claim_one()
    assert store.jobs.finish(store.session, mine, JobStatus.DONE, actor="test")
    assert store.plane.stop_draining(store.session)
    assert not store.plane.stop_draining(store.session)
    assert store.plane.draining(store.session) is None
    store.submit()
