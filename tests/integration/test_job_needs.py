"""Jobs that need others: they wait, are set free when those are done, and end when they fail."""

from __future__ import annotations

import random
from uuid import UUID, uuid4

import pytest

from acceptance.processes import until
from integration.conftest import MakePlace
from integration.job_store import Store, opened, store
from integration.scheduling import open_clockwork
from tidegate.jobs.claim import WorkerTurns
from tidegate.jobs.dependencies import Needs, SettledJobs
from tidegate.jobs.job import NOTHING, Claim, Ending, JobState, JobStatus
from tidegate.jobs.job_records import JobLists

__all__ = ["opened", "store"]


def submit(store: Store, name: str, *needs: UUID) -> UUID:
    return store.submit(name, needs=needs)


def names(claims: list[Claim]) -> list[str]:
    return sorted(claim.name for claim in claims)


def test_a_chain_is_worked_one_after_the_other_by_claims_and_by_turns(store: Store) -> None:
    for by_turns in (False, True):
        submit(store, "c", submit(store, "b", submit(store, "a")))
        turns = WorkerTurns(store.plane, "w", "shop", ("sync",), 60.0)
        claims = store.take(10)
        for name in "abc":
            assert names(claims) == [name]
            if by_turns:
                endings = [Ending(claim, JobStatus.DONE) for claim in claims]
                claims = turns.take(store.session, endings, 4).claims
            else:
                assert store.finish(claims[0])
                claims = store.take(10)
        assert claims == []
        assert store.value("SELECT count(*) FROM job_needs") == 0


def test_a_diamond_waits_for_both_of_its_sides(store: Store) -> None:
    top = submit(store, "top")
    left, right = submit(store, "left", top), submit(store, "right", top)
    submit(store, "bottom", left, right)
    # One that is to be retried has neither failed nor is it done.
    assert store.give_back(store.take_one(), "once more")
    assert set(store.execute("SELECT status FROM jobs")) == {("pending",)}
    assert store.finish(store.take_one())
    sides = store.take(10)
    assert names(sides) == ["left", "right"]
    assert store.finish(sides[0])
    assert store.take(10) == []
    assert store.finish(sides[1])
    assert names(store.take(10)) == ["bottom"]


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_whoever_needs_a_job_that_failed_fails_with_its_name(
    store: Store, status: JobStatus
) -> None:
    a, other = submit(store, "a"), submit(store, "other")
    b = submit(store, "b", a, other)
    c = submit(store, "c", b)
    unrelated = submit(store, "unrelated", other)
    claim = next(claim for claim in store.take(10) if claim.job_id == a)
    assert store.finish(claim, status, "it broke")
    word = "was cancelled" if status is JobStatus.CANCELLED else "failed"
    assert store.get(b).error == f"requires a, which {word}"
    assert store.get(c).error == "requires b, which failed"
    assert (store.get(b).status, store.get(c).status) == (JobStatus.FAILED, JobStatus.FAILED)
    assert store.get(unrelated).status is JobStatus.PENDING
    assert store.value("SELECT count(*) FROM job_queue WHERE job_id = ANY(%s)", [b, c]) == 0
    assert store.audit(b)[-1] == "failed"


def test_a_job_that_was_given_up_or_lost_its_last_worker_fails_those_behind_it(
    store: Store,
) -> None:
    dropped, crashed = submit(store, "dropped"), store.submit("crashed", max_attempts=1)
    behind, after = submit(store, "behind", dropped), submit(store, "after", crashed)
    assert store.jobs.drop_pending(store.session, dropped, "ana", "not needed")
    assert store.get(behind).error == "requires dropped, which was cancelled"
    worker = store.new_worker()
    store.take_one(worker_id=worker.worker_id)
    store.kill(worker.worker_id)
    store.reclaim()
    assert store.get(after).error == "requires crashed, which failed"


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
    assert needs.settle_all(store.session) == SettledJobs(released=1, failed=3)
    assert names(store.take(10)) == ["b"]
    assert [store.get(job).status for job in (b, y, z)] == ["running", "failed", "failed"]
    assert needs.settle_all(store.session) == SettledJobs()
    # The need was met, and the job not yet set free.
    c = submit(store, "c", a)
    store.execute("DELETE FROM job_needs WHERE job_id = %s", c)
    assert needs.settle_all(store.session) == SettledJobs(released=1)
    assert names(store.take(10)) == ["c"]


def test_a_job_that_waits_for_others_says_so_and_keeps_no_worker_awake(store: Store) -> None:
    a = submit(store, "a")
    b = submit(store, "b", a)
    assert store.take_one()
    assert store.jobs.depth(store.session) == 0
    assert store.jobs.seconds_to_next(store.session, project="shop", kinds=["sync"]) is None
    assert Needs(store.plane).of(store.session, b) == [(a, "a", "running")]
    lines = {line.name: line.state for line in JobLists(store.plane).newest(store.session, "shop")}
    assert lines["b"] is JobState.NEEDS
    assert store.get(b).visible_at is None


def test_two_who_end_at_once_set_free_whoever_waits_for_both(store: Store) -> None:
    """Without anybody looking after it: each pair ends in two sessions at the same moment."""
    for _ in range(15):
        bottom = submit(store, "bottom", submit(store, "left"), submit(store, "right"))
        claims = store.take(2)
        assert store.at_once(
            2,
            lambda own, n, claims=claims: store.jobs.finish(  # type: ignore[misc]
                own, claims[n], JobStatus.DONE, actor="w"
            ),
        ) == [True, True]
        (claim,) = store.take(10)
        assert claim.job_id == bottom
        assert store.finish(claim)


def test_workers_end_a_graph_to_the_last_job_each_after_what_it_needs(
    make_place: MakePlace,
) -> None:
    """Real ones, within limits; one of them ends with its queue."""
    with open_clockwork(make_place(resources={"one": 1, "two": 2})) as clockwork:
        chance, ids = random.Random(4), list[UUID]()
        needed: dict[UUID, list[UUID]] = {}
        for number in range(80):
            some = chance.sample(ids[-20:], k=min(len(ids), chance.randrange(4)))
            limits = chance.choice([(), (), ("one",), ("two",), ("one", "two")])
            ids.append(clockwork.submit(f"n{number}", needs=tuple(some), limits=limits))
            needed[ids[-1]] = some
        workers = [clockwork.project.worker(kinds=[NOTHING], concurrency=4) for _ in range(3)]

        def work(_: object, number: int) -> None:
            if number < len(workers):
                workers[number].run()
                return
            left = "SELECT count(*) FROM job_queue"
            try:
                until(lambda: clockwork.value(left) == 0, "the last job")
            finally:
                for worker in workers:
                    worker.stop()

        clockwork.at_once(len(workers) + 1, work)
        rows = clockwork.execute(
            "SELECT job_id, status, attempt_count, started_at, finished_at FROM jobs"
        )
        assert {(row[1], row[2]) for row in rows} == {("done", 1)}
        times = {row[0]: (row[3], row[4]) for row in rows}
        for job_id, some in needed.items():
            assert all(times[one][1] <= times[job_id][0] for one in some)

        first = clockwork.submit("a", limits=("one",))
        second = clockwork.submit("b", needs=(first,), limits=("one",))
        clockwork.submit("c", needs=(first, second), limits=("two",))
        for name in "def":
            clockwork.submit(name, limits=("one",))
        tally = clockwork.project.worker(kinds=[NOTHING], concurrency=4, burst=True).run()
        assert (tally.done, tally.failed) == (6, 0)
