"""Old jobs are forgotten: in chunks, the oldest first, without the last of each sync."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from integration.job_store import Store, opened, store
from tidegate.core.errors import UsageError
from tidegate.jobs.job import SYNC, VACUUM, JobStatus
from tidegate.jobs.job_records import JobRecords
from tidegate.jobs.sweeper import prune

__all__ = ["opened", "store"]

DAY = 86_400.0
MONTH = 30 * DAY


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
