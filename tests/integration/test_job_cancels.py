"""Cancel in two steps, against whatever else happens to the job meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from integration.job_store import RESOURCE, Store, opened, store
from tidegate.jobs.job import Claim, JobStatus, LockAt
from tidegate.jobs.reclaim import LostAttempt
from tidegate.postgres.connection import Connection

__all__ = ["opened", "store"]

Action = Callable[[Store, Connection, Claim], bool]


def request_cancel(store: Store, session: Connection, mine: Claim) -> bool:
    found = store.cancels.request(session, mine.job_id, actor="ops", patience_seconds=30)
    return found is not None


def finish_cancel(store: Store, session: Connection, mine: Claim) -> bool:
    return store.cancels.finish(session, mine.job_id, JobStatus.CANCELLED, actor="ops", error="no")


def finish(store: Store, session: Connection, mine: Claim) -> bool:
    return store.jobs.finish(session, mine, JobStatus.DONE, actor="worker", result={"rows": 1})


def beat(store: Store, session: Connection, mine: Claim) -> bool:
    return store.jobs.beat(session, "worker", [mine], 1000) == {mine.attempt_id}


def give_back(store: Store, session: Connection, mine: Claim) -> bool:
    return store.jobs.give_back(session, mine, actor="worker")


def reclaim(store: Store, session: Connection, mine: Claim) -> bool:
    """The worker was never registered, so it counts as dead."""
    dead = LostAttempt(mine.job_id, mine.attempt_id, "sync", RESOURCE, {}, None, 0, max_attempts=5)
    return store.dead.reclaim(session, dead, "sweeper")


def drop(store: Store, session: Connection, mine: Claim) -> bool:
    return store.jobs.drop_pending(session, mine.job_id, "ops", "no")


OTHERS = (finish, beat, give_back, reclaim, drop)


def state(store: Store, job_id: UUID) -> tuple[str, bool, bool]:
    """Status, whether it is in the queue, whether its resource is locked."""
    queued = store.value("SELECT count(*) FROM job_queue WHERE job_id = %s", job_id) == 1
    return store.get(job_id).status.value, queued, RESOURCE in store.locked()


@pytest.fixture
def mine(store: Store) -> Claim:
    store.submit(lock_at=LockAt.CLAIM)
    return store.take_one()


def test_a_cancel_takes_the_job_from_its_attempt_and_keeps_the_table_until_it_is_ended(
    store: Store, mine: Claim
) -> None:
    store.jobs.store_plan(store.session, mine, {"update_id": "u"})
    found = store.cancels.request(store.session, mine.job_id, actor="ops", patience_seconds=30)
    assert found is not None
    assert (found.job_id, found.kind, found.name) == (mine.job_id, "sync", "orders")
    assert (found.resource, found.plan) == (RESOURCE, {"update_id": "u"})
    assert state(store, mine.job_id) == ("running", True, True)
    record = store.get(mine.job_id)
    assert (record.attempt_id, record.cancel_requested_at is not None) == (None, True)
    assert store.dead.list(store.session) == []
    assert finish_cancel(store, store.session, mine)
    assert state(store, mine.job_id) == ("cancelled", False, False)
    assert store.outcomes(mine.job_id) == [("cancelled", None)]
    assert store.audit(mine.job_id) == ["submitted", "claimed", "cancel requested", "cancelled"]
    before = store.everything()
    assert not finish_cancel(store, store.session, mine)
    assert not request_cancel(store, store.session, mine)
    assert store.everything() == before


@pytest.mark.parametrize("status", [JobStatus.CANCELLED, JobStatus.DONE])
def test_after_a_cancel_nobody_else_writes_for_the_job(
    store: Store, mine: Claim, status: JobStatus
) -> None:
    def nobody_writes() -> None:
        before = store.everything()
        for other in OTHERS:
            assert not other(store, store.session, mine), other
        assert store.everything() == before
        assert store.take(5) == []

    assert request_cancel(store, store.session, mine)
    nobody_writes()
    # One that came too late may end the job as done.
    result = {"rows": 3} if status is JobStatus.DONE else None
    assert store.cancels.finish(store.session, mine.job_id, status, actor="ops", result=result)
    record = store.get(mine.job_id)
    assert (record.status, record.result, record.error) == (status, result, None)
    nobody_writes()


def run_against(store: Store, first: Action, second: Action, mine: Claim) -> bool:
    """The second begins while the first is not committed; says whether it won after all."""
    with store.plane.connect() as one, store.plane.connect() as two, ThreadPoolExecutor(1) as pool:
        pid = two.info.backend_pid
        with one.transaction():
            assert first(store, one, mine)
            late: Future[bool] = pool.submit(second, store, two, mine)
            while not store.value("SELECT cardinality(pg_blocking_pids(%s))", pid):
                if late.done():  # some do not wait for a row that another has
                    break
        return late.result()


# Of each pair in this order: whether the second wins, and how the job stands.
RACES: dict[tuple[Action, Action], tuple[bool, tuple[str, bool, bool]]] = {
    (request_cancel, finish): (False, ("running", True, True)),
    (request_cancel, beat): (False, ("running", True, True)),
    (request_cancel, give_back): (False, ("running", True, True)),
    (request_cancel, reclaim): (False, ("running", True, True)),
    (request_cancel, drop): (False, ("running", True, True)),
    (request_cancel, request_cancel): (True, ("running", True, True)),
    (request_cancel, finish_cancel): (False, ("running", True, True)),
    (finish, request_cancel): (False, ("done", False, False)),
    (beat, request_cancel): (True, ("running", True, True)),
    (give_back, request_cancel): (False, ("pending", True, False)),
    (reclaim, request_cancel): (False, ("pending", True, False)),
    (finish, finish_cancel): (False, ("done", False, False)),
    (beat, finish_cancel): (False, ("running", True, True)),
    (reclaim, finish_cancel): (False, ("pending", True, False)),
    (finish, reclaim): (False, ("done", False, False)),
    (beat, reclaim): (False, ("running", True, True)),
    (reclaim, finish): (False, ("pending", True, False)),
    (reclaim, beat): (False, ("pending", True, False)),
    (reclaim, reclaim): (False, ("pending", True, False)),
    (give_back, finish): (False, ("pending", True, False)),
    (finish, finish): (False, ("done", False, False)),
    (beat, finish): (True, ("done", False, False)),
    (finish, beat): (False, ("done", False, False)),
    (reclaim, drop): (False, ("pending", True, False)),
}


@pytest.mark.parametrize(
    ("first", "second"), RACES, ids=lambda action: getattr(action, "__name__", "")
)
def test_whoever_comes_while_another_writes_sees_what_that_one_left(
    store: Store, mine: Claim, first: Action, second: Action
) -> None:
    wins, stands = RACES[first, second]
    assert run_against(store, first, second, mine) is wins
    assert state(store, mine.job_id) == stands
    ends = [event for event in store.audit(mine.job_id) if event in set(JobStatus)]
    assert ends == ([stands[0]] if not stands[1] else [])


@pytest.mark.parametrize("second", [*OTHERS, request_cancel, finish_cancel])
def test_nobody_writes_for_a_job_whose_cancel_is_being_ended(
    store: Store, mine: Claim, second: Action
) -> None:
    assert request_cancel(store, store.session, mine)
    assert not run_against(store, finish_cancel, second, mine)
    assert state(store, mine.job_id) == ("cancelled", False, False)


def test_a_half_done_cancel_is_shown_to_sweepers_only_after_its_patience(
    store: Store, mine: Claim
) -> None:
    assert store.cancels.list_half_done(store.session, "shop") == []
    assert request_cancel(store, store.session, mine)
    assert store.cancels.list_half_done(store.session, "shop") == []
    store.expire(mine.job_id)
    (half,) = store.cancels.list_half_done(store.session, "shop")
    assert (half.job_id, half.resource) == (mine.job_id, RESOURCE)
    assert store.cancels.list_half_done(store.session, "bank") == []
    assert request_cancel(store, store.session, mine)
    assert store.cancels.list_half_done(store.session, "shop") == []
    store.expire(mine.job_id)
    assert finish_cancel(store, store.session, mine)
    assert store.cancels.list_half_done(store.session, "shop") == []


def heard(listening: Connection) -> list[tuple[str, str]]:
    """What was announced, and on which channel; the server sends it before it answers."""
    listening.execute("SELECT 1")
    return [(one.channel, one.payload) for one in listening.notifies(timeout=0)]


def test_workers_are_told_of_new_work_and_of_cancels(store: Store) -> None:
    jobs, cancels = store.plane.channel("jobs"), store.plane.channel("cancels")
    with store.plane.connect() as listening:
        listening.execute(f"LISTEN {jobs}; LISTEN {cancels}")

        def told(act: Callable[[], Any]) -> list[tuple[str, str]]:
            act()
            return heard(listening)

        assert told(lambda: store.submit(project="bank")) == [(jobs, "bank")]
        assert told(store.submit) == [(jobs, "shop")]
        mine = store.take_one()
        assert heard(listening) == []
        assert told(lambda: give_back(store, store.session, mine)) == [(jobs, "shop")]
        again = store.take_one()
        assert told(lambda: beat(store, store.session, again)) == []
        assert told(lambda: reclaim(store, store.session, again)) == [(jobs, "shop")]
        assert told(lambda: reclaim(store, store.session, again)) == []
        third = store.take_one()
        assert told(lambda: request_cancel(store, store.session, third)) == [
            (cancels, third.attempt_id)
        ]
        assert told(lambda: finish_cancel(store, store.session, third)) == []
        with store.session.transaction():
            store.submit()
            assert heard(listening) == []
        assert heard(listening) == [(jobs, "shop")]
        store.plane.start_draining(store.session, "ops")
        assert told(store.ask) == []
