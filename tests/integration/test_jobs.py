"""Jobs: queued, claimed, kept alive, finished once, taken back from the dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from integration.conftest import Database
from tidegate.control.dead import DeadAttempt, DeadAttempts
from tidegate.control.jobs import Jobs
from tidegate.control.plane import ControlPlane
from tidegate.control.tokens import Tokens
from tidegate.control.workers import Worker, Workers
from tidegate.model.job import Claim, JobRequest, JobStatus, Submission, Submitted
from tidegate.postgres.connect import Connection, connect

RESOURCE = "postgres:1/warehouse/raw.orders"


def request(resource: str = RESOURCE, **options: Any) -> JobRequest:
    return JobRequest("shop", "sync", "orders", resource, {"target": "w:raw.orders"}, **options)


@pytest.fixture
def plane(database: Database) -> ControlPlane:
    made = ControlPlane(partial(connect, database.conninfo, name="the control database"))
    with made.connect() as session:
        made.migrate(session)
    return made


@pytest.fixture
def jobs(plane: ControlPlane) -> Jobs:
    return Jobs(plane)


@pytest.fixture
def session(plane: ControlPlane) -> Iterator[Connection]:
    with plane.connect() as opened:
        yield opened


NewWorker = Callable[[], tuple[Worker, Connection]]


@pytest.fixture
def new_worker(plane: ControlPlane) -> Iterator[NewWorker]:
    """A maker of live workers; closing the session that comes with one is its death."""
    with ExitStack() as stack:

        def make() -> tuple[Worker, Connection]:
            worker, own = Worker.of_this_process(), stack.enter_context(plane.connect())
            Workers(plane).register(own, worker, "0")
            return worker, own

        yield make


def submit(jobs: Jobs, session: Connection, **options: Any) -> UUID:
    submitted = jobs.submit(session, request(**options), "test")
    assert submitted.outcome is Submitted.QUEUED
    assert submitted.job_id is not None
    return submitted.job_id


def claim(jobs: Jobs, session: Connection, worker: Worker, lease: float = 60) -> Claim:
    (found,) = claim_ready(jobs, session, worker, lease)
    return found


def claim_ready(
    jobs: Jobs, session: Connection, worker: Worker, lease: float = 60, limit: int = 1
) -> list[Claim]:
    return jobs.claim_ready(
        session,
        worker.worker_id,
        project="shop",
        kinds=["sync"],
        lease_seconds=lease,
        limit=limit,
    )


def beat(jobs: Jobs, session: Connection, mine: Claim, lease: float = 60) -> bool:
    return jobs.beat(session, "worker", [mine], lease) == {mine.attempt_id}


def end(own: Connection, watching: Connection) -> None:
    """Close a session and wait until its backend, and so its advisory lock, is gone."""
    pid = own.info.backend_pid
    own.close()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = %s)"
    while watching.execute(gone, (pid,)).fetchone() != (True,):
        pass


def state(session: Connection, job_id: UUID) -> tuple[Any, ...]:
    row = session.execute(
        "SELECT status, attempt_id, attempt_count, crash_count, error IS NOT NULL,"
        " EXISTS (SELECT FROM tidegate_control.job_queue q WHERE q.job_id = j.job_id),"
        " EXISTS (SELECT FROM tidegate_control.table_locks l WHERE l.job_id = j.job_id)"
        " FROM tidegate_control.jobs j WHERE job_id = %s",
        (job_id,),
    ).fetchone()
    assert row is not None
    return row


def audit(session: Connection, job_id: UUID) -> list[str]:
    rows = session.execute(
        "SELECT event FROM tidegate_control.job_audit WHERE job_id = %s ORDER BY id", (job_id,)
    )
    return [row[0] for row in rows]


def test_a_submitted_job_waits_in_the_queue_and_holds_its_table(
    jobs: Jobs, session: Connection
) -> None:
    job_id = submit(jobs, session)
    assert state(session, job_id) == ("pending", None, 0, 0, False, True, True)
    holder = jobs.holder(session, RESOURCE)
    assert holder is not None
    assert (holder.job_id, holder.status, holder.pid) == (job_id, JobStatus.PENDING, None)
    assert "nobody yet" in str(holder)
    assert audit(session, job_id) == ["submitted"]


def test_a_second_job_for_a_held_table_is_not_taken_but_for_another_it_is(
    jobs: Jobs, session: Connection
) -> None:
    submit(jobs, session)
    assert jobs.submit(session, request(), "test") == Submission(Submitted.LOCKED)
    assert session.execute("SELECT count(*) FROM tidegate_control.jobs").fetchone() == (1,)
    submit(jobs, session, resource="postgres:1/warehouse/raw.other")


def test_of_many_submitters_at_once_exactly_one_gets_the_table(
    jobs: Jobs, session: Connection
) -> None:
    def attempt(_: int) -> UUID | None:
        with jobs.plane.connect() as own:
            return jobs.submit(own, request(), "test").job_id

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(attempt, range(12)))
    assert len([one for one in found if one]) == 1
    assert session.execute("SELECT count(*) FROM tidegate_control.jobs").fetchone() == (1,)


def test_a_claim_starts_an_attempt_with_a_fresh_token_and_a_lease(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    worker, _ = new_worker()
    found = claim(jobs, session, worker, lease=100)
    assert (found.job_id, found.attempt_count, found.plan) == (job_id, 1, None)
    assert found.payload == {"target": "w:raw.orders"}
    assert len(found.attempt_id) == 32
    assert state(session, job_id) == ("running", found.attempt_id, 1, 0, False, True, True)
    lease = session.execute(
        "SELECT extract(epoch FROM lease_until - now()) FROM tidegate_control.job_queue"
    ).fetchone()
    assert lease is not None
    assert 90 < lease[0] <= 100
    holder = jobs.holder(session, RESOURCE)
    assert holder is not None
    assert (holder.pid, holder.host) == (worker.pid, worker.host)
    assert jobs.live_attempts(session) == {found.attempt_id}
    assert audit(session, job_id) == ["submitted", "claimed"]


def test_a_claimed_job_is_not_claimed_again(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    claim(jobs, session, new_worker()[0])
    other = new_worker()[0]
    assert claim_ready(jobs, session, other) == []
    assert jobs.claim(session, other.worker_id, job_id, lease_seconds=60) is None


def test_claimers_at_once_get_different_jobs_with_different_tokens(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    expected = {submit(jobs, session, resource=f"r{number}") for number in range(6)}
    workers = [new_worker()[0] for _ in range(8)]

    def attempt(worker: Worker) -> list[Claim]:
        with jobs.plane.connect() as own:
            return claim_ready(jobs, own, worker)

    found: list[list[Claim]] = []
    with ThreadPoolExecutor(8) as pool:
        found += pool.map(attempt, workers)
    found += [attempt(workers[0]) for _ in range(6)]
    claims = [one for some in found for one in some]
    assert {one.job_id for one in claims} == expected
    assert len(claims) == len({one.fence for one in claims}) == 6


def test_a_beat_renews_the_lease_of_its_own_attempt_only(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    submit(jobs, session)
    mine = claim(jobs, session, new_worker()[0], lease=1)
    assert beat(jobs, session, mine, 1000)
    left = session.execute(
        "SELECT lease_until > now() + interval '900 s' FROM tidegate_control.job_queue"
    ).fetchone()
    assert left == (True,)
    session.execute("UPDATE tidegate_control.job_queue SET attempt_id = 'another'")
    assert not beat(jobs, session, mine, 1000)


def test_renewals_stay_in_their_page_without_touching_an_index(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    submit(jobs, session)
    mine = claim(jobs, session, new_worker()[0])
    counters = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job_queue'"
    )

    def count() -> tuple[int, int]:
        session.execute("SELECT pg_stat_force_next_flush()")
        row = session.execute(counters).fetchone()
        assert row is not None
        return row[0], row[1]

    before = count()
    for _ in range(50):
        assert beat(jobs, session, mine)
    after = count()
    assert (after[0] - before[0], after[1] - before[1]) == (50, 50)


@pytest.mark.parametrize("status", [JobStatus.DONE, JobStatus.FAILED])
def test_finishing_writes_the_end_once_and_frees_the_table(
    jobs: Jobs, session: Connection, new_worker: NewWorker, status: JobStatus
) -> None:
    job_id = submit(jobs, session)
    mine = claim(jobs, session, new_worker()[0])
    assert jobs.finish(session, mine, status, actor="test", result={"rows": 5})
    assert state(session, job_id)[0] == status.value
    assert state(session, job_id)[5:] == (False, False)
    assert jobs.holder(session, RESOURCE) is None
    assert not jobs.finish(session, mine, JobStatus.FAILED, actor="test", error="late")
    assert state(session, job_id)[0] == status.value
    assert audit(session, job_id) == ["submitted", "claimed", status.value]
    submit(jobs, session)


def test_a_stale_attempt_can_neither_finish_nor_store_a_plan(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    worker, own = new_worker()
    stale = claim(jobs, session, worker)
    assert jobs.store_plan(session, stale, {"plan": 1})
    end(own, session)
    (dead,) = DeadAttempts(jobs.plane).list(session)
    assert DeadAttempts(jobs.plane).reclaim(session, dead, "sweeper")
    new = claim(jobs, session, new_worker()[0])
    assert new.plan == {"plan": 1}
    assert (new.attempt_count, new.job_id) == (2, job_id)
    assert new.fence > stale.fence
    assert not jobs.store_plan(session, stale, {"plan": 2})
    assert not beat(jobs, session, stale)
    assert not jobs.finish(session, stale, JobStatus.DONE, actor="test")
    assert Tokens(jobs.plane).reissue(session, stale, 10) is None
    assert state(session, job_id)[:2] == ("running", new.attempt_id)
    assert jobs.finish(session, new, JobStatus.DONE, actor="test")


def test_a_worker_is_dead_as_soon_as_its_session_ends(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    submit(jobs, session)
    worker, own = new_worker()
    mine = claim(jobs, session, worker, lease=3600)
    assert DeadAttempts(jobs.plane).list(session) == []
    end(own, session)
    (dead,) = DeadAttempts(jobs.plane).list(session, resource=RESOURCE)
    assert (dead.attempt_id, dead.resource) == (mine.attempt_id, RESOURCE)
    assert dead.payload == {"target": "w:raw.orders"}
    assert DeadAttempts(jobs.plane).list(session, resource="another table") == []


def test_two_jobs_of_a_dead_worker_are_reclaimed_at_the_same_time(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    worker, own = new_worker()
    for resource in ("one", "other"):
        submit(jobs, session, resource=resource)
        claim(jobs, session, worker, lease=3600)
    end(own, session)
    found = DeadAttempts(jobs.plane)
    (one,) = found.list(session, resource="one")
    with jobs.plane.connect() as beside, session.transaction():
        assert found.reclaim(session, one, "first")
        # The first has not committed: its look at the worker's lock keeps nobody out.
        (other,) = found.list(beside, resource="other")
        assert found.reclaim(beside, other, "second")


def test_a_live_worker_within_its_lease_is_not_reclaimed(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    mine = claim(jobs, session, new_worker()[0])
    wrong = DeadAttempt(job_id, mine.attempt_id, "sync", RESOURCE, {}, None, 0, max_attempts=5)
    assert not DeadAttempts(jobs.plane).reclaim(session, wrong, "sweeper")
    assert state(session, job_id)[0] == "running"


def test_a_worker_that_holds_its_lock_but_not_its_lease_is_reclaimed(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    claim(jobs, session, new_worker()[0], lease=1e-6)
    (dead,) = DeadAttempts(jobs.plane).list(session)
    assert DeadAttempts(jobs.plane).reclaim(session, dead, "sweeper")
    assert state(session, job_id) == ("pending", None, 1, 1, False, True, True)
    assert audit(session, job_id)[-1] == "reclaimed"


def test_who_reclaims_from_a_dead_attempt_leaves_its_successor_alone(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    worker = new_worker()[0]
    claim(jobs, session, worker, lease=1e-6)
    (dead,) = DeadAttempts(jobs.plane).list(session)
    assert DeadAttempts(jobs.plane).reclaim(session, dead, "sweeper")
    claim(jobs, session, worker, lease=1e-6)
    assert not DeadAttempts(jobs.plane).reclaim(session, dead, "a slower sweeper")
    assert state(session, job_id)[0] == "running"


def test_of_many_sweepers_exactly_one_reclaims(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    submit(jobs, session)
    claim(jobs, session, new_worker()[0], lease=1e-6)
    (dead,) = DeadAttempts(jobs.plane).list(session)

    def attempt(_: int) -> bool:
        with jobs.plane.connect() as own:
            return DeadAttempts(jobs.plane).reclaim(own, dead, "sweeper")

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(attempt, range(12))).count(True) == 1


def test_a_job_whose_workers_all_die_fails_after_max_attempts(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session, max_attempts=3)
    for crashes in (1, 2, 3):
        worker, own = new_worker()
        claim(jobs, session, worker)
        end(own, session)
        (dead,) = DeadAttempts(jobs.plane).list(session)
        assert DeadAttempts(jobs.plane).reclaim(session, dead, "sweeper")
        assert state(session, job_id)[3] == crashes
    assert state(session, job_id) == ("failed", None, 3, 3, True, False, False)
    assert claim_ready(jobs, session, new_worker()[0]) == []
    submit(jobs, session)


def test_a_holder_is_shown_since_its_own_attempt_began(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    """Not since the job was submitted: an earlier attempt may have died hours ago."""
    job_id = submit(jobs, session)
    session.execute(
        "UPDATE tidegate_control.table_locks SET acquired_at = now() - interval '5 hours'"
    )
    waiting = jobs.holder(session, RESOURCE)
    claim(jobs, session, new_worker()[0])
    holder = jobs.holder(session, RESOURCE)
    assert waiting is not None
    assert holder is not None
    claimed_at = session.execute(
        "SELECT claimed_at FROM tidegate_control.job_queue WHERE job_id = %s", (job_id,)
    ).fetchone()
    assert (holder.since,) == claimed_at
    assert waiting.since is not None
    assert waiting.since < holder.since
    assert f"since {holder.since:%Y-%m-%d %H:%M:%S}" in str(holder)


def test_only_a_job_that_nobody_works_on_is_dropped(
    jobs: Jobs, session: Connection, new_worker: NewWorker
) -> None:
    job_id = submit(jobs, session)
    mine = claim(jobs, session, new_worker()[0])
    assert not jobs.drop_pending(session, job_id, "test", "no")
    jobs.finish(session, mine, JobStatus.DONE, actor="test")
    second = submit(jobs, session)
    assert jobs.drop_pending(session, second, "test", "superseded")
    assert state(session, second) == ("cancelled", None, 0, 0, True, False, False)


def test_a_worker_that_lost_its_session_takes_its_lock_again(
    jobs: Jobs, session: Connection, new_worker: NewWorker, plane: ControlPlane
) -> None:
    submit(jobs, session)
    worker, own = new_worker()
    claim(jobs, session, worker)
    end(own, session)
    with plane.connect() as again:
        assert Workers(plane).rejoin(again, worker)
        assert DeadAttempts(jobs.plane).list(session) == []
