"""Old jobs are forgotten in chunks, and what the next run needs stays."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import Desk, open_desk
from tidegate.control.job_records import JobRecords
from tidegate.control.retention import prune
from tidegate.errors import UsageError
from tidegate.model.job import SYNC, VACUUM, JobStatus

DAY = 86_400.0


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS)) as opened:
        yield opened


def old(
    desk: Desk, status: JobStatus, *, days: int = 40, name: str = "orders", **more: str
) -> UUID:
    job_id = desk.end(status, "x", name=name, **more)
    desk.age(job_id, days)
    return job_id


def left(desk: Desk) -> set[UUID]:
    return {
        row[0] for row in desk.place.control.execute("SELECT job_id FROM tidegate_control.jobs")
    }


def test_finished_jobs_go_with_their_attempts_steps_and_audit(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    desk.jobs.finish(desk.control, claim, JobStatus.FAILED, actor="x")
    desk.age(job_id, 31)
    young = desk.end(JobStatus.FAILED, "x")
    assert prune(desk.control, desk.plane, 30 * DAY) == 1
    assert left(desk) == {young}
    for table in ("job_attempts", "job_actions", "job_audit"):
        rows = desk.place.control.execute(f"SELECT DISTINCT job_id FROM tidegate_control.{table}")
        assert job_id not in {row[0] for row in rows}, table
    assert desk.counts()["job_audit"] == 3


def test_the_newest_job_that_is_done_stays_for_each_sync_of_each_project(desk: Desk) -> None:
    gone = {
        old(desk, JobStatus.DONE, days=60),
        old(desk, JobStatus.FAILED, days=40),
        old(desk, JobStatus.CANCELLED, days=35),
        old(desk, JobStatus.DONE, days=70, kind=VACUUM),
    }
    kept = {
        old(desk, JobStatus.DONE, days=50),
        old(desk, JobStatus.DONE, days=70, name="customers"),
        old(desk, JobStatus.DONE, days=70, project="other"),
    }
    result = {"fingerprints": {"a": 1}}
    desk.control.execute(
        'UPDATE tidegate_control.jobs SET result = \'{"fingerprints": {"a": 1}}\''
        " WHERE status = 'done'"
    )
    assert prune(desk.control, desk.plane, 30 * DAY) == len(gone)
    assert left(desk) == kept
    records = JobRecords(desk.plane)
    assert records.last_result(desk.control, "shop", SYNC, "orders") == result
    assert prune(desk.control, desk.plane, 30 * DAY) == 0


def test_what_is_unfinished_stays_however_old(desk: Desk) -> None:
    waiting, running = desk.submit(), desk.submit("customers")
    desk.claim(running)
    for job_id in (waiting, running):
        desk.age(job_id, 400)
    assert prune(desk.control, desk.plane, 30 * DAY) == 0
    assert left(desk) == {waiting, running}


def test_a_job_that_waited_long_and_ended_lately_stays(desk: Desk) -> None:
    job_id = desk.end(JobStatus.FAILED, "x")
    desk.control.execute(
        "UPDATE tidegate_control.jobs SET submitted_at = submitted_at - interval '90 days'"
    )
    assert prune(desk.control, desk.plane, 30 * DAY) == 0
    assert left(desk) == {job_id}


def test_they_go_in_chunks_the_oldest_first_until_none_is_left(desk: Desk) -> None:
    ids = [old(desk, JobStatus.FAILED, days=100 - number) for number in range(5)]
    assert prune(desk.control, desk.plane, 30 * DAY, 2) == 2
    assert left(desk) == set(ids[2:])
    assert [prune(desk.control, desk.plane, 30 * DAY, 2) for _ in range(3)] == [2, 1, 0]


def test_two_that_prune_at_once_do_not_wait_for_each_other(desk: Desk) -> None:
    for number in range(4):
        old(desk, JobStatus.FAILED, days=40 + number)
    with desk.plane.connect() as other, other.transaction():
        assert prune(other, desk.plane, 30 * DAY, 3) == 3
        desk.control.execute("SET statement_timeout = '5s'")
        assert prune(desk.control, desk.plane, 30 * DAY, 3) == 1
    assert left(desk) == set()


@pytest.mark.parametrize(("age", "limit"), [(0.0, 10), (-1.0, 10), (DAY, 0), (DAY, -1)])
def test_an_age_or_number_that_makes_no_sense_is_refused(
    desk: Desk, age: float, limit: int
) -> None:
    old(desk, JobStatus.FAILED)
    with pytest.raises(UsageError):
        prune(desk.control, desk.plane, age, limit)
    assert desk.counts()["jobs"] == 1


def test_pruning_reads_the_oldest_by_an_index(desk: Desk) -> None:
    desk.control.execute(
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, payload, status, lock_at,"
        " submitted_by, submitted_at, finished_at)"
        " SELECT gen_random_uuid(), 'shop', 'sync', 't' || n % 50, '{}', 'done', 'never', 'x',"
        " now() - n * interval '1 minute', now() - n * interval '1 minute'"
        " FROM generate_series(1, 20000) n"
    )
    desk.control.execute("ANALYZE tidegate_control.jobs")
    plan = desk.control.execute(
        "EXPLAIN " + desk.plane.statement("jobs", "prune_jobs").as_string(None),  # type: ignore[arg-type]
        {"older_than": 10 * DAY, "limit": 100},
    ).fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "jobs_submitted" in text
    assert "jobs_recent" in text
    assert "Seq Scan on jobs" not in text
