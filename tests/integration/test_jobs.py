"""Jobs: which comes next, who may write for it, how it ends and is taken back from the dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from integration.job_store import RESOURCE, Store, end_session, opened, store
from tidegate.core.errors import UsageError
from tidegate.core.units import Backoff
from tidegate.jobs.claim import WorkerTurns
from tidegate.jobs.control_database import Tokens
from tidegate.jobs.job import Claim, Ending, JobStatus, LockAt, Submission, Submitted
from tidegate.jobs.reclaim import LostAttempt
from tidegate.jobs.worker_records import Workers

__all__ = ["opened", "store"]


def ids(claims: list[Claim]) -> list[UUID]:
    return [claim.job_id for claim in claims]


def make_visible(store: Store) -> None:
    store.execute("UPDATE job_queue SET visible_at = now() - interval '1 ms'")


def beat(store: Store, *claims: Claim, lease: float = 60) -> set[str]:
    return set(store.jobs.beat(store.session, "worker", claims, lease))


def state(store: Store, job_id: UUID) -> tuple[Any, ...]:
    """Status, attempt, attempts, crashes, whether it has an error, is queued, has its table."""
    return store.execute(
        "SELECT status, attempt_id, attempt_count, crash_count, error IS NOT NULL,"
        " EXISTS (SELECT FROM job_queue q WHERE q.job_id = j.job_id),"
        " EXISTS (SELECT FROM table_locks l WHERE l.job_id = j.job_id)"
        " FROM jobs j WHERE job_id = %s",
        job_id,
    )[0]


# Which job comes next


def test_urgent_jobs_come_first_and_equal_ones_in_the_order_they_were_submitted(
    store: Store,
) -> None:
    with store.session.transaction():
        low = [store.submit(priority=-1) for _ in range(3)]
        normal = [store.submit() for _ in range(3)]
        high = [store.submit(priority=7) for _ in range(3)]
    found = store.take(4)
    assert ids(found) == [*high, normal[0]]
    assert len({one.attempt_id for one in found}) == 4
    assert sorted({one.fence for one in found}) == [one.fence for one in found]
    assert [store.take_one().job_id for _ in range(2)] == normal[1:]
    assert ids(store.take(9)) == low
    assert store.take() == []


def test_a_job_is_not_taken_before_its_time_but_by_its_id(store: Store) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    later, delayed = store.submit(visible_at=soon, priority=9), store.submit(delay_seconds=3600)
    ready = store.submit(visible_at=soon - timedelta(hours=2))
    assert store.jobs.depth(store.session) == 1
    assert ids(store.take(9)) == [ready]
    assert store.get(later).visible_at == soon
    waits = store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"])
    assert waits is not None
    assert 3500 < waits <= 3600
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["x"]) is None
    assert store.claim(later).job_id == later
    make_visible(store)
    assert ids(store.take(9)) == [delayed]


def test_only_jobs_of_the_project_and_of_the_kinds_are_taken(store: Store) -> None:
    store.submit(project="bank")
    vacuum, sync = store.submit(kind="vacuum"), store.submit()
    assert ids(store.take(9, kinds=["vacuum"])) == [vacuum]
    assert store.take(9, kinds=[]) == []
    assert store.take(9, project="else") == []
    assert ids(store.take(9, kinds=["vacuum", "sync"])) == [sync]
    assert len(store.take(9, project="bank")) == 1


def test_a_claim_of_nothing_or_for_no_time_is_refused(store: Store) -> None:
    job_id = store.submit()
    before = store.everything()
    for limit, lease in ((0, 60), (-1, 60), (1, 0), (1, -5)):
        with pytest.raises(UsageError):
            store.take(limit, lease=lease)
    for seconds in (0.0, -5.0):
        with pytest.raises(UsageError, match="holds nothing"):
            store.claim(job_id, seconds)
        with pytest.raises(UsageError, match="holds nothing"):
            beat(store, lease=seconds)
    assert store.everything() == before


def test_claimers_at_once_get_different_jobs_with_different_tokens(store: Store) -> None:
    expected = {store.submit(resource=f"r{number}") for number in range(6)}
    found = store.at_once(8, lambda own, n: store.take(worker_id=f"w{n}", session=own))
    found += [store.take() for _ in range(6)]
    claims = [one for some in found for one in some]
    assert {one.job_id for one in claims} == expected
    assert len(claims) == len({one.fence for one in claims}) == 6


def test_a_claim_starts_an_attempt_with_a_fresh_token_and_a_lease(store: Store) -> None:
    job_id = store.submit(lock_at=LockAt.SUBMIT)
    assert state(store, job_id) == ("pending", None, 0, 0, False, True, True)
    waiting = store.jobs.holder(store.session, RESOURCE)
    assert waiting is not None
    assert (waiting.job_id, waiting.status, waiting.pid) == (job_id, JobStatus.PENDING, None)
    assert "nobody yet" in str(waiting)
    # It is shown since its attempt began: an earlier one may have died hours ago.
    store.execute("UPDATE table_locks SET acquired_at = now() - interval '5 hours'")
    worker = store.new_worker()
    found = store.take_one(worker_id=worker.worker_id, lease=100)
    assert (found.job_id, found.attempt_count, found.plan) == (job_id, 1, None)
    assert found.payload == {"target": "w:raw.orders"}
    assert len(found.attempt_id) == 32
    assert state(store, job_id) == ("running", found.attempt_id, 1, 0, False, True, True)
    lease = store.value("SELECT extract(epoch FROM lease_until - now()) FROM job_queue")
    assert 90 < lease <= 100
    holder = store.jobs.holder(store.session, RESOURCE)
    assert holder is not None
    assert (holder.pid, holder.host) == (worker.pid, worker.host)
    assert holder.since == store.value("SELECT claimed_at FROM job_queue")
    assert f"since {holder.since:%Y-%m-%d %H:%M:%S}" in str(holder)
    assert store.jobs.live_attempts(store.session) == {found.attempt_id}
    assert store.audit(job_id) == ["submitted", "claimed"]
    assert store.take() == []
    assert store.jobs.claim(store.session, "other", job_id, lease_seconds=60) is None


def test_a_beat_renews_its_own_attempt_in_its_page_without_touching_an_index(
    store: Store,
) -> None:
    store.submit()
    mine = store.take_one(lease=1)

    def count() -> tuple[Any, ...]:
        store.execute("SELECT pg_stat_force_next_flush()")
        return store.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_queue'"
        )[0]

    before = count()
    for _ in range(50):
        assert beat(store, mine, lease=1000) == {mine.attempt_id}
    after = count()
    assert (after[0] - before[0], after[1] - before[1]) == (50, 50)
    assert store.value("SELECT lease_until > now() + interval '900 s' FROM job_queue")
    store.execute("UPDATE job_queue SET attempt_id = 'another'")
    assert beat(store, mine, lease=1000) == set()


# Who may write


def stale_and_new(store: Store) -> tuple[Claim, Claim]:
    """An attempt that was replaced, and the one that replaced it."""
    worker = store.new_worker()
    store.submit()
    stale = store.take_one(worker_id=worker.worker_id)
    assert store.jobs.store_plan(store.session, stale, {"plan": 1})
    store.kill(worker.worker_id)
    store.reclaim()
    return stale, store.take_one()


def test_a_stale_attempt_writes_nothing_at_all(store: Store) -> None:
    stale, new = stale_and_new(store)
    assert new.fence > stale.fence
    assert (new.plan, new.attempt_count, new.job_id) == ({"plan": 1}, 2, stale.job_id)
    before = store.everything()
    session, jobs = store.session, store.jobs
    assert not jobs.store_plan(session, stale, {"n": 1})
    assert not jobs.record_progress(session, stale, {"n": 1})
    assert not jobs.record_action(session, stale, "stage", {})
    assert not store.finish(stale)
    assert not store.give_back(stale)
    assert not store.give_back(stale, "late")
    assert beat(store, stale) == set()
    assert Tokens(jobs.plane).reissue(session, stale, 1) is None
    assert store.everything() == before
    assert store.finish(new)


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
    assert store.finish(new)
    assert not jobs.record_action(session, new, "late", {})


# How an attempt gives its job back, and how a job ends


def test_after_an_error_a_job_waits_longer_each_time_and_keeps_the_error(store: Store) -> None:
    job_id, waits = store.submit(), []
    for errors in range(1, 5):
        mine = store.take_one()
        assert (mine.attempt_count, mine.error_count) == (errors, errors - 1)
        wait = Backoff().seconds(mine.error_count + 1, 1.0)
        assert store.give_back(mine, "broken", wait)
        record = store.get(job_id)
        assert (record.status, record.error, record.error_count) == ("pending", "broken", errors)
        assert (record.crash_count, record.attempt_id, record.claimed_at) == (0, None, None)
        waits.append(
            round(store.value("SELECT extract(epoch FROM visible_at - now()) FROM job_queue"))
        )
        assert store.take() == []
        make_visible(store)
    assert waits == [5, 10, 20, 40]
    assert store.outcomes(job_id) == [("error", "broken")] * 4
    assert store.audit(job_id)[:3] == ["submitted", "claimed", "to be retried"]


# The dead


def test_a_worker_is_dead_as_soon_as_its_session_ends_and_may_come_back(store: Store) -> None:
    for resource in (RESOURCE, "other"):
        store.submit(resource=resource)
    worker = store.new_worker()
    mine, _ = store.take(2, worker_id=worker.worker_id, lease=3600)
    assert store.dead.list(store.session) == []
    end_session(store.sessions.pop(worker.worker_id), store.session)
    (dead,) = store.dead.list(store.session, resource=RESOURCE)
    assert (dead.attempt_id, dead.resource) == (mine.attempt_id, RESOURCE)
    assert dead.payload == {"target": "w:raw.orders"}
    assert store.dead.list(store.session, resource="another table") == []
    with store.plane.connect() as again:
        assert Workers(store.plane).rejoin(again, worker)
        assert store.dead.list(store.session) == []
        end_session(again, store.session)
    with store.plane.connect() as beside, store.session.transaction():
        assert store.dead.reclaim(store.session, dead, "first")
        # The first has not committed: its look at the worker's lock keeps nobody out.
        (other,) = store.dead.list(beside, resource="other")
        assert store.dead.reclaim(beside, other, "second")


def test_a_live_worker_within_its_lease_is_not_reclaimed(store: Store) -> None:
    job_id = store.submit()
    store.submit()
    kept = store.take_one(worker_id=store.new_worker().worker_id)
    wrong = LostAttempt(job_id, kept.attempt_id, "sync", RESOURCE, {}, None, 0, max_attempts=5)
    assert not store.dead.reclaim(store.session, wrong, "sweeper")
    lost = store.take_one(worker_id="never registered")
    assert [dead.attempt_id for dead in store.dead.list(store.session)] == [lost.attempt_id]
    store.expire(job_id)
    assert len(store.dead.list(store.session, project="shop")) == 2
    assert store.dead.list(store.session, project="bank") == []
    assert beat(store, kept, lost) == {kept.attempt_id, lost.attempt_id}
    assert not store.dead.reclaim(store.session, wrong, "sweeper")
    assert state(store, job_id)[0] == "running"


def test_who_reclaims_from_a_dead_attempt_leaves_its_successor_alone(store: Store) -> None:
    job_id = store.submit(lock_at=LockAt.SUBMIT)
    worker = store.new_worker()
    store.take_one(worker_id=worker.worker_id, lease=1e-6)
    dead = store.reclaim()
    assert state(store, job_id) == ("pending", None, 1, 1, False, True, True)
    assert store.audit(job_id)[-1] == "reclaimed"
    store.take_one(worker_id=worker.worker_id, lease=1e-6)
    assert not store.dead.reclaim(store.session, dead, "a slower sweeper")
    assert state(store, job_id)[0] == "running"
    store.reclaim(delay_seconds=3600)
    assert store.take() == [], "it may have to wait"


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("lock_at", [LockAt.SUBMIT, LockAt.CLAIM])
def test_a_job_whose_workers_all_die_ends_and_is_kept(
    store: Store, published: bool, lock_at: LockAt
) -> None:
    job_id = store.submit(max_attempts=3, lock_at=lock_at)
    for _ in range(4):
        store.give_back(store.take_one(), "an error is no crash")
    for crashes in (1, 2, 3):
        mine = store.take_one()
        assert store.jobs.record_progress(store.session, mine, {"rows": crashes})
        store.expire(job_id)
        assert store.reclaim(published=published).crash_count == crashes - 1
        assert store.get(job_id).crash_count == crashes
    record = store.get(job_id)
    assert record.status is (JobStatus.DONE if published else JobStatus.FAILED)
    assert record.error == (None if published else "its worker died in every attempt")
    assert record.result == ({"rows": 3} if published else None)
    assert (record.error_count, record.finished_at is not None) == (4, True)
    assert store.locked() == set()
    assert store.audit(job_id)[-2:] == ["reclaimed", record.status.value]
    assert store.outcomes(job_id)[4:] == [("lost", None)] * 3
    assert store.execute("SELECT * FROM job_queue") == []


# A worker's turn: what it has done is finished and what is next is claimed, in one statement


@pytest.fixture
def turns(store: Store) -> WorkerTurns:
    return WorkerTurns(store.plane, store.new_worker().worker_id, "shop", ("sync",), 60)


def done(claim: Claim) -> Ending:
    return Ending(claim, JobStatus.DONE, result={"rows": 1})


def test_jobs_pass_through_turn_by_turn_in_their_order(store: Store, turns: WorkerTurns) -> None:
    submitted = [store.submit() for _ in range(5)]
    seen, endings = list[UUID](), list[Ending]()
    while True:
        turn = turns.take(store.session, endings, 2)
        assert turn.won == {ending.claim.attempt_id for ending in endings}
        seen += ids(turn.claims)
        endings = [done(claim) for claim in turn.claims]
        if not endings:
            break
    assert seen == submitted
    records = [store.get(job_id) for job_id in submitted]
    assert [(one.status, one.result) for one in records] == [("done", {"rows": 1})] * 5
    store.submit()
    (mine,) = turns.take(store.session, [], 1).claims
    store.submit()
    full = turns.take(store.session, [done(mine)], 0)
    assert (full.won, full.claims) == ({mine.attempt_id}, []), "no place is free"


def test_a_stale_ending_is_left_out_and_the_claim_goes_on(store: Store, turns: WorkerTurns) -> None:
    first = store.submit()
    (mine,) = turns.take(store.session, [], 1).claims
    assert store.give_back(mine)
    turn = turns.take(store.session, [done(mine)], 1)
    assert turn.won == set()
    assert ids(turn.claims) == [first]
    assert turn.claims[0].attempt_id != mine.attempt_id
    assert store.get(first).status is JobStatus.RUNNING


def test_what_an_ending_unlocks_is_claimed_in_the_next_turn(
    store: Store, turns: WorkerTurns
) -> None:
    store.submit(lock_at=LockAt.CLAIM)
    second = store.submit(lock_at=LockAt.CLAIM)
    (mine,) = turns.take(store.session, [], 5).claims
    between = turns.take(store.session, [done(mine)], 5)
    assert (between.won, between.claims) == ({mine.attempt_id}, [])
    assert ids(turns.take(store.session, [], 5).claims) == [second]


@pytest.mark.parametrize("by_turns", [False, True])
def test_endings_with_and_without_errors_and_results_keep_their_own(
    store: Store, turns: WorkerTurns, by_turns: bool
) -> None:
    for _ in range(3):
        store.submit()
    claims = turns.take(store.session, [], 3).claims
    stale, _ = stale_and_new(store)
    unknown = Claim(uuid4(), "x" * 32, 1, "sync", "n", None, {}, None, 1)
    endings = [
        Ending(claims[0], JobStatus.FAILED, error='it\'s {broken}, "quoted"'),
        Ending(stale, JobStatus.FAILED, "late"),
        Ending(claims[1], JobStatus.DONE),
        Ending(unknown, JobStatus.DONE),
        Ending(claims[2], JobStatus.DONE, result={"a": None}),
    ]

    def finish() -> set[str]:
        if by_turns:
            return set(turns.take(store.session, endings, 1).won)
        return set(store.jobs.finish_many(store.session, endings, actor="test"))

    assert finish() == {claim.attempt_id for claim in claims}
    found = [store.get(claim.job_id) for claim in claims]
    assert [(one.status, one.error, one.error_count, one.result) for one in found] == [
        ("failed", 'it\'s {broken}, "quoted"', 1, None),
        ("done", None, 0, None),
        ("done", None, 0, {"a": None}),
    ]
    assert store.outcomes(stale.job_id) == [("lost", None), (None, None)]
    assert finish() == set()


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
        assert store.ask(**options) == Submission(Submitted.DRAINING)
    assert store.ask(idempotency_key="k") == Submission(Submitted.REPEATED, waiting)
    assert store.everything() == before
    assert store.finish(store.take_one())
    assert store.plane.stop_draining(store.session)
    assert not store.plane.stop_draining(store.session)
    assert store.plane.draining(store.session) is None
    store.submit()
