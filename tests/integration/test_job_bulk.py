"""Many jobs: taken in at once, all or none and in order, and forgotten when they are old."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from integration.job_store import Store, opened, request, store
from tidegate.core.errors import BusyError, UsageError
from tidegate.jobs import bulk
from tidegate.jobs.bulk import submit_many
from tidegate.jobs.job import SYNC, VACUUM, JobRequest, JobStatus, LockAt
from tidegate.jobs.job_records import JobRecords
from tidegate.jobs.sweeper import prune

__all__ = ["opened", "store"]

ODD = "a\tb\nc\rd\\e\\N\\.\x01é€😀\"'{}"
DAY = 86_400.0
MONTH = 30 * DAY


def submit(store: Store, requests: Iterable[JobRequest], actor: str = "test") -> int:
    return submit_many(store.session, store.plane, requests, actor)


def nothing_but_ids(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that a submit writes, without ids and moments."""
    return {
        "jobs": store.execute(
            "SELECT to_jsonb(j) - 'job_id' - 'submitted_at' FROM jobs j ORDER BY job_id"
        ),
        "queue": store.execute(
            "SELECT to_jsonb(q) - 'job_id' - 'visible_at', visible_at > now() FROM job_queue q"
            " ORDER BY job_id"
        ),
        "audit": store.execute(
            "SELECT to_jsonb(a) - 'job_id' - 'at' - 'id' FROM job_audit a ORDER BY id"
        ),
        "locks": store.execute("SELECT * FROM table_locks"),
    }


def all_kinds() -> list[JobRequest]:
    return [
        request(),
        request(lock_at=LockAt.CLAIM, resource="r"),
        request(resource=None, priority=-3, max_attempts=1),
        request(project="bank", kind="vacuum", retry_of=uuid4()),
        request(delay_seconds=3600),
        request(visible_at=datetime.now(UTC) + timedelta(days=1)),
        request(name=ODD, kind=ODD, project=ODD, resource=ODD, lock_at=LockAt.CLAIM),
        request(payload={ODD: [ODD, 1.5, None, True, {"deep": ODD}]}),
        request(name=""),
    ]


def test_jobs_submitted_together_are_as_if_submitted_one_by_one(store: Store) -> None:
    requests = all_kinds()
    for one in requests:
        store.jobs.submit(store.session, one, ODD)
    alone = nothing_but_ids(store)
    store.clean()
    assert submit(store, requests, ODD) == len(requests)
    assert nothing_but_ids(store) == alone


def test_several_copies_make_one_submit_and_jobs_are_claimed_in_their_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_JOBS_A_COPY", 7)
    monkeypatch.setattr(bulk, "_LINES_A_WRITE", 3)
    later = {3, 7, 20}
    for count in (0, 1, 6, 7, 8, 21, 50):
        store.clean()
        before = store.submit("before")
        requests = (
            request(name=f"n{number}", delay_seconds=3600 if number in later else 0)
            for number in range(count)
        )
        assert submit(store, requests) == count
        after = store.submit("after")
        assert store.value("SELECT count(*) FROM jobs") == count + 2
        assert store.value("SELECT count(*) FROM job_audit") == count + 2
        assert store.jobs.depth(store.session) == len(set(range(count)) - later) + 2
        claims = store.take(100)
        assert [one.name for one in claims[1:-1]] == [
            f"n{number}" for number in range(count) if number not in later
        ]
        assert (claims[0].job_id, claims[-1].job_id) == (before, after)
        assert all(store.finish(one) for one in claims)


def test_submitters_at_once_do_not_mix(store: Store) -> None:
    counts = store.at_once(
        4,
        lambda own, n: submit_many(
            own, store.plane, (request(name=f"n{n}") for _ in range(300)), f"actor {n}"
        ),
    )
    assert counts == [300] * 4
    assert store.value("SELECT count(*) FROM job_queue") == 1_200
    assert store.execute(
        "SELECT DISTINCT name || ' ' || submitted_by || ' ' || actor"
        " FROM jobs JOIN job_audit USING (job_id) ORDER BY 1"
    ) == [(f"n{number} actor {number} actor {number}",) for number in range(4)]


def test_a_job_that_another_submits_and_ends_meanwhile_is_left_alone(store: Store) -> None:
    def requests() -> Iterator[JobRequest]:
        yield request()
        with store.plane.connect() as other:
            store.jobs.submit(other, request(name="other"), "other")
            (mine,) = store.take(session=other)
            assert store.jobs.finish(other, mine, JobStatus.DONE, actor="other")
        yield request()

    assert submit(store, requests()) == 2
    assert {one.name for one in store.take(9)} == {"orders"}
    assert store.execute("SELECT status, name FROM jobs WHERE name = 'other'") == [
        ("done", "other")
    ]


def test_what_cannot_be_queued_with_many_leaves_nothing_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_JOBS_A_COPY", 10)
    before = store.everything()
    for bad, said in (
        (request(lock_at=LockAt.SUBMIT), "takes its resource when it is submitted"),
        (request(unique_key="u"), "has the unique key 'u'"),
        (request(idempotency_key="k"), "has the idempotency key 'k'"),
    ):
        with pytest.raises(UsageError, match=said) as raised:
            submit(store, [*(request() for _ in range(25)), bad])
        assert "nothing was queued" in str(raised.value)
        assert store.everything() == before

    def broken() -> Iterator[JobRequest]:
        yield request()
        raise RuntimeError("the file ends here")

    with pytest.raises(RuntimeError, match="ends here"):
        submit(store, broken())
    assert store.everything() == before
    assert submit(store, [request()]) == 1


def test_while_draining_many_are_refused_like_one(store: Store) -> None:
    def requests() -> Iterator[JobRequest]:
        yield request()
        with store.plane.connect() as other:
            store.plane.start_draining(other, "ops")
        yield request()

    with pytest.raises(BusyError):
        submit(store, requests())
    before = store.everything()
    said = "ops drains this control plane; nothing was queued"
    with pytest.raises(BusyError, match=said) as raised:
        submit(store, [request()])
    assert raised.value.exit_code == 75
    assert "tidegate drain off" in str(raised.value)
    assert store.everything() == before
    assert before["jobs"] == []


def test_workers_are_woken_once_a_project(store: Store) -> None:
    channel = store.plane.channel("jobs")
    with store.plane.connect() as listening:
        listening.execute(f"LISTEN {channel}")
        submit(store, [request(project=name) for name in ("shop", "bank", "shop") * 100])
        submit(store, [])
        listening.execute("SELECT 1")
        assert [one.payload for one in listening.notifies(timeout=0)] == ["bank", "shop"]


def test_more_jobs_than_memory_should_hold_pass_through(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held at a time does not grow with the number of jobs."""
    monkeypatch.setattr(bulk, "_JOBS_A_COPY", 2_000)
    count, payload = 5_000, "x" * 4_000
    submit(store, (request(resource=None) for _ in range(10)))
    tracemalloc.start()
    try:
        requests = (request(resource=None, payload={"x": payload}) for _ in range(count))
        assert submit(store, requests) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000 < count * len(payload)
    assert store.value("SELECT count(*) FROM job_queue") == count + 10


# Old jobs


def age(store: Store, job_id: UUID, days: int) -> UUID:
    store.execute(
        "UPDATE jobs j SET submitted_at = submitted_at - a.age, started_at = started_at - a.age,"
        " finished_at = finished_at - a.age FROM (SELECT %s::interval AS age) a WHERE job_id = %s",
        f"{days} days",
        job_id,
    )
    return job_id


def old(store: Store, status: JobStatus, days: int = 40, **options: Any) -> UUID:
    return age(store, store.end(status, "x", **options), days)


def left(store: Store) -> set[UUID]:
    return {row[0] for row in store.execute("SELECT job_id FROM jobs")}


def test_finished_jobs_go_with_their_attempts_steps_and_audit(store: Store) -> None:
    job_id = store.submit()
    claim = store.claim(job_id)
    assert store.jobs.record_action(store.session, claim, "load", {})
    assert store.finish(claim, JobStatus.FAILED)
    age(store, job_id, 31)
    young = store.end(JobStatus.FAILED, "x")
    lately = store.end(JobStatus.FAILED, "x")
    store.execute(
        "UPDATE jobs SET submitted_at = now() - interval '90 days' WHERE job_id = %s", lately
    )
    waiting, running = store.submit(), store.submit()
    store.claim(running)
    for unfinished in (waiting, running):
        age(store, unfinished, 400)
    assert prune(store.session, store.plane, MONTH) == 1
    assert left(store) == {young, lately, waiting, running}
    for table in ("job_attempts", "job_actions", "job_audit"):
        rows = store.execute(f"SELECT DISTINCT job_id FROM {table}")
        assert (job_id,) not in rows, table
    assert len(store.audit(young)) == 3


def test_the_newest_job_that_is_done_stays_for_each_sync_of_each_project(store: Store) -> None:
    gone = {
        old(store, JobStatus.DONE, 60),
        old(store, JobStatus.FAILED, 40),
        old(store, JobStatus.CANCELLED, 35),
        old(store, JobStatus.DONE, 70, kind=VACUUM),
    }
    kept = {
        old(store, JobStatus.DONE, 50),
        old(store, JobStatus.DONE, 70, name="customers"),
        old(store, JobStatus.DONE, 70, project="other"),
    }
    store.execute("UPDATE jobs SET result = '{\"fingerprints\": {\"a\": 1}}' WHERE status = 'done'")
    assert prune(store.session, store.plane, MONTH) == len(gone)
    assert left(store) == kept
    found = JobRecords(store.plane).last_result(store.session, "shop", SYNC, "orders")
    assert found == {"fingerprints": {"a": 1}}
    assert prune(store.session, store.plane, MONTH) == 0


def test_they_go_in_chunks_the_oldest_first_and_two_that_prune_do_not_wait(store: Store) -> None:
    ids = [old(store, JobStatus.FAILED, 100 - number) for number in range(8)]
    for seconds, limit in ((0.0, 10), (-1.0, 10), (DAY, 0), (DAY, -1)):
        with pytest.raises(UsageError):
            prune(store.session, store.plane, seconds, limit)
    assert prune(store.session, store.plane, MONTH, 2) == 2
    assert left(store) == set(ids[2:])
    with store.plane.connect() as other, other.transaction():
        assert prune(other, store.plane, MONTH, 3) == 3
        with store.session.transaction():
            store.execute("SET LOCAL statement_timeout = '5s'")
            assert prune(store.session, store.plane, MONTH, 2) == 2
    assert left(store) == {ids[7]}
    assert [prune(store.session, store.plane, MONTH, 2) for _ in range(2)] == [1, 0]
