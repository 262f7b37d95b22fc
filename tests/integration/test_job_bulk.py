"""Many jobs at once: all or none, in order, quickly, and no different from jobs submitted alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from integration.job_store import Store, open_store, request
from tidegate.control import bulk
from tidegate.control.bulk import submit_many
from tidegate.errors import BusyError, UsageError
from tidegate.model.job import JobRequest, JobStatus, LockAt
from tidegate.postgres.embedded import EmbeddedServer

ODD = "a\tb\nc\rd\\e\\N\\.\x01é€😀\"'{}"


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as store:
        yield store


@pytest.fixture
def store(opened: Store) -> Store:
    opened.clean()
    return opened


def submit(store: Store, requests: Iterable[JobRequest]) -> int:
    return submit_many(store.session, store.plane, requests, "test")


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
    assert submit_many(store.session, store.plane, requests, ODD) == len(requests)
    assert nothing_but_ids(store) == alone


def test_jobs_submitted_together_are_claimed_in_their_order_and_finished(store: Store) -> None:
    wanted = [f"n{number}" for number in range(50)]
    before = store.submit()
    submit(store, (request(name=name) for name in wanted))
    after = store.submit()
    claims = store.claim(100)
    assert [one.name for one in claims[1:-1]] == wanted
    assert (claims[0].job_id, claims[-1].job_id) == (before, after)
    assert all(
        store.jobs.finish(store.session, one, JobStatus.DONE, actor="test") for one in claims
    )


def test_several_copies_make_one_submit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_JOBS_A_COPY", 7)
    monkeypatch.setattr(bulk, "_LINES_A_WRITE", 3)
    for count in (0, 1, 6, 7, 8, 21, 50):
        store.clean()
        later = {3, 7, 20}
        requests = (
            request(name=f"n{number}", delay_seconds=3600 if number in later else 0)
            for number in range(count)
        )
        assert submit(store, requests) == count
        assert store.value("SELECT count(*) FROM jobs") == count
        assert store.value("SELECT count(*) FROM job_audit") == count
        assert store.jobs.depth(store.session) == len(set(range(count)) - later)
        names = [one.name for one in store.claim(100)]
        assert names == [f"n{number}" for number in range(count) if number not in later]


def test_submitters_at_once_do_not_mix(store: Store) -> None:
    def work(number: int) -> int:
        with store.plane.connect() as own:
            requests = (request(name=f"n{number}") for _ in range(500))
            return submit_many(own, store.plane, requests, f"actor {number}")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(8))) == 4_000
    assert store.value("SELECT count(*) FROM job_queue") == 4_000
    assert store.execute(
        "SELECT DISTINCT name || ' ' || submitted_by || ' ' || actor"
        " FROM jobs JOIN job_audit USING (job_id) ORDER BY 1"
    ) == [(f"n{number} actor {number} actor {number}",) for number in range(8)]


def test_a_job_that_another_submits_and_ends_meanwhile_is_left_alone(store: Store) -> None:
    def requests() -> Iterator[JobRequest]:
        yield request()
        with store.plane.connect() as other:
            store.jobs.submit(other, request(name="other"), "other")
            (mine,) = store.claim(session=other)
            assert store.jobs.finish(other, mine, JobStatus.DONE, actor="other")
        yield request()

    assert submit(store, requests()) == 2
    assert {one.name for one in store.claim(9)} == {"orders"}
    assert store.execute("SELECT status, name FROM jobs WHERE name = 'other'") == [
        ("done", "other")
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (request(lock_at=LockAt.SUBMIT), "takes its resource when it is submitted"),
        (request(unique_key="u"), "has the unique key 'u'"),
        (request(idempotency_key="k"), "has the idempotency key 'k'"),
    ],
    ids=["lock", "unique", "idempotency"],
)
def test_what_needs_an_answer_of_its_own_is_refused_and_nothing_is_queued(
    store: Store, bad: JobRequest, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_JOBS_A_COPY", 10)
    before = store.everything()
    with pytest.raises(UsageError, match=said) as raised:
        submit(store, [*(request() for _ in range(25)), bad])
    assert "nothing was queued" in str(raised.value)
    assert store.everything() == before
    assert submit(store, [request()]) == 1


def test_a_source_of_requests_that_breaks_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[JobRequest]:
        yield request()
        raise RuntimeError("the file ends here")

    before = store.everything()
    with pytest.raises(RuntimeError, match="ends here"):
        submit(store, broken())
    assert store.everything() == before


def test_while_draining_many_are_refused_like_one(store: Store) -> None:
    store.plane.start_draining(store.session, "ops")
    before = store.everything()
    said = "ops drains this control plane; nothing was queued"
    with pytest.raises(BusyError, match=said) as raised:
        submit(store, [request()])
    assert raised.value.exit_code == 75
    assert "tidegate drain off" in str(raised.value)
    assert store.everything() == before


def test_a_drain_that_begins_meanwhile_is_heeded(store: Store) -> None:
    def requests() -> Iterator[JobRequest]:
        yield request()
        with store.plane.connect() as other:
            store.plane.start_draining(other, "ops")
        yield request()

    with pytest.raises(BusyError):
        submit(store, requests())
    assert store.value("SELECT count(*) FROM jobs") == 0


def test_workers_are_woken_once_a_project(store: Store) -> None:
    channel = store.plane.channel("jobs")
    with store.plane.connect() as listening:
        listening.execute(f"LISTEN {channel}")  # type: ignore[arg-type]
        submit(store, [request(project=name) for name in ("shop", "bank", "shop") * 100])
        submit(store, [])
        listening.execute("SELECT 1")
        assert [one.payload for one in listening.notifies(timeout=0)] == ["bank", "shop"]


def test_more_jobs_than_memory_should_hold_pass_through(store: Store) -> None:
    count, payload = 60_000, "x" * 1_000
    submit(store, (request(resource=None) for _ in range(10)))
    tracemalloc.start()
    try:
        requests = (request(resource=None, payload={"x": payload}) for _ in range(count))
        assert submit(store, requests) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert store.value("SELECT count(*) FROM job_queue") == count + 10
