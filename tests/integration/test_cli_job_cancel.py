"""`tidegate job cancel` and `retry`: what they answer is so, and what they refuse is untouched."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE
from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.control.job_records import JobRecord, JobRecords
from tidegate.model.job import NOTHING, PUBLISH, JobStatus, LockAt


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


def mark(desk: Desk, update_id: str) -> None:
    """A load is in: its marker is."""
    destination = desk.project.context.destination(desk.project.syncs["orders"].target)
    destination.ledger.ensure()
    marker = desk.project.marker("warehouse:raw.orders", update_id=update_id)
    with desk.project.connect("warehouse") as connection:
        marker.touch(connection)


def record(desk: Desk, job_id: UUID) -> JobRecord:
    found = JobRecords(desk.plane).get(desk.control, job_id)
    assert found is not None
    return found


def test_a_waiting_job_is_cancelled_with_nothing_published(desk: Desk) -> None:
    job_id = desk.submit()
    done = desk.run("job", "cancel", str(job_id))
    assert (done.code, desk.status(job_id)) == (DONE, "cancelled")
    assert f"job {job_id} (orders): cancelled: nothing of it was published" in done.out
    assert desk.counts()["job_queue"] == 0


def test_a_running_job_is_cancelled_and_its_attempt_can_write_nothing_more(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    done = desk.run("job", "cancel", str(job_id))
    assert (done.code, desk.status(job_id)) == (DONE, "cancelled")
    assert "cancelled: nothing of it was published" in done.out
    assert not desk.jobs.finish(desk.control, claim, JobStatus.DONE, actor="late")
    assert desk.counts()["table_locks"] == 0


def test_loads_that_were_published_earlier_are_counted(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    desk.load(claim, "u2")
    found = desk.run("job", "cancel", str(job_id), "--json").document
    assert found == [
        {
            "job": str(job_id),
            "name": "orders",
            "status": "cancelled",
            "loads_published": 2,
            "error": None,
            "hint": None,
        }
    ]


def test_a_load_that_was_published_but_not_yet_written_down_is_counted_too(desk: Desk) -> None:
    """The attempt was between its commit and its note when the cancel came."""
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    desk.jobs.store_plan(desk.control, claim, {"update_id": "u2", "final": False})
    mark(desk, "u2")
    said = desk.run("job", "cancel", str(job_id)).out
    assert "cancelled: 2 loads published earlier stay" in said


def test_a_planned_load_that_is_not_in_is_not_counted(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.jobs.store_plan(desk.control, claim, {"update_id": "u1", "final": False})
    assert "nothing of it was published" in desk.run("job", "cancel", str(job_id)).out


def test_a_cancel_that_comes_after_the_last_load_says_that_the_job_is_done(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.jobs.store_plan(desk.control, claim, {"update_id": "u1", "final": True})
    mark(desk, "u1")
    done = desk.run("job", "cancel", str(job_id))
    assert (done.code, desk.status(job_id)) == (DONE, "done")
    assert "done: its load was published before the cancel could reach it" in done.out


def test_several_are_cancelled_at_once_each_named_once(desk: Desk) -> None:
    one, other = desk.submit(), desk.submit("customers")
    done = desk.run("job", "cancel", str(one), str(other), one.hex)
    assert done.out.count("cancelled: ") == 2
    assert {desk.status(one), desk.status(other)} == {"cancelled"}


@pytest.mark.parametrize("status", [one for one in JobStatus if one.is_terminal])
def test_a_finished_job_is_not_cancelled_and_keeps_the_others_from_it(
    desk: Desk, status: JobStatus
) -> None:
    waiting, ended = desk.submit("customers"), desk.end(status)
    before = desk.counts()
    for ids in ([str(ended)], [str(waiting), str(ended)], [str(waiting), "orders"]):
        done = desk.run("job", "cancel", *ids)
        assert done.code == USAGE
        assert "nothing was changed" in done.err
    assert (desk.counts(), desk.status(waiting)) == (before, "pending")


def test_a_cancel_whose_destination_does_not_answer_is_an_error_and_can_be_repeated(
    desk: Desk,
) -> None:
    unknown = {"target": "nowhere:raw.orders"}
    job_id, waiting = desk.submit(payload=unknown), desk.submit("customers")
    desk.claim(job_id)
    done = desk.run("job", "cancel", str(job_id), str(waiting))
    assert done.code == FAILED
    assert f"job {job_id}" in done.err
    assert "nowhere" in done.err
    assert (desk.status(job_id), desk.status(waiting)) == ("running", "cancelled")
    desk.control.execute(
        'UPDATE tidegate_control.jobs SET payload = \'{"target": "warehouse:raw.orders"}\''
    )
    assert desk.run("job", "cancel", str(job_id)).code == DONE
    assert desk.status(job_id) == "cancelled"


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_a_retry_is_a_new_job_for_the_same_work(desk: Desk, status: JobStatus) -> None:
    old = desk.end(status, "x", priority=7, max_attempts=3, unique_key="sync:orders")
    done = desk.run("job", "retry", str(old), "--json")
    assert done.code == DONE
    assert done.document["retry_of"] == str(old)
    assert done.document["created"] is True
    before, after = record(desk, old), record(desk, UUID(done.document["job"]))
    assert (after.retry_of, after.status) == (old, JobStatus.PENDING)
    for name in ("kind", "name", "payload", "resource", "priority", "lock_at", "max_attempts"):
        assert getattr(after, name) == getattr(before, name), name
    assert (before.status, after.plan, after.attempt_count) == (status, None, 0)
    again = desk.run("job", "retry", str(old))
    assert again.code == DONE
    assert f"another job does this already: {after.job_id}" in again.out
    assert desk.counts()["jobs"] == 2


def test_a_retry_that_wants_its_table_at_once_is_busy_while_another_has_it(desk: Desk) -> None:
    old = desk.end(JobStatus.FAILED, "x", lock_at=LockAt.SUBMIT)
    desk.claim(desk.submit())
    before = desk.counts()
    done = desk.run("job", "retry", str(old))
    assert done.code == BUSY
    assert "its table is held by job" in done.err
    assert desk.counts() == before


@pytest.mark.parametrize("state", ["pending", "running", "done"])
def test_only_a_failed_or_cancelled_job_is_retried(desk: Desk, state: str) -> None:
    job_id = desk.end(JobStatus.DONE) if state == "done" else desk.submit()
    if state == "running":
        desk.claim(job_id)
    before = desk.counts()
    done = desk.run("job", "retry", str(job_id))
    assert done.code == USAGE
    assert f"is {state}; only a failed or cancelled job is retried" in done.err
    assert desk.counts() == before


def test_what_is_no_work_for_a_worker_is_not_retried_from_here(desk: Desk) -> None:
    publish = desk.end(JobStatus.FAILED, "x", kind=PUBLISH)
    adopt = desk.end(
        JobStatus.FAILED,
        "x",
        payload={"target": "warehouse:raw.orders", "command": "tidegate adopt"},
    )
    before = desk.counts()
    first, second = desk.run("job", "retry", str(publish)), desk.run("job", "retry", str(adopt))
    assert (first.code, second.code) == (USAGE, USAGE)
    assert "published a DataFrame, which is not kept" in first.err
    assert "give it again: tidegate adopt orders" in second.err
    assert desk.counts() == before


def test_while_it_drains_a_retry_is_refused_as_busy(desk: Desk) -> None:
    old = desk.end(JobStatus.FAILED, "x", kind=NOTHING, lock_at=LockAt.NEVER, resource=None)
    desk.plane.start_draining(desk.control, "ana")
    before = desk.counts()
    done = desk.run("job", "retry", str(old))
    assert done.code == BUSY
    assert "ana drains this control plane" in done.err
    assert desk.counts() == before
    desk.plane.stop_draining(desk.control)
    assert desk.run("job", "retry", str(old)).code == DONE
