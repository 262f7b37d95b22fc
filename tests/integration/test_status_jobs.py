"""`status` tells of waiting and failed jobs and of workers; uninstall refuses beside one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.commands import BUSY, DONE
from integration.conftest import MakePlace
from integration.orders import ORDERS, contents
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.model.job import JobStatus


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


def test_when_nothing_waits_and_nothing_failed_status_says_nothing_of_jobs(desk: Desk) -> None:
    desk.end(JobStatus.DONE)
    out = desk.run("status").out
    assert "jobs:" not in out
    found = desk.run("status", "--json").document
    assert found["queue"]["ready"] == 0
    assert [one["pid"] for one in found["queue"]["workers"]] == [desk.worker.pid]


def test_status_has_a_line_when_jobs_wait_or_failed_or_when_it_drains(desk: Desk) -> None:
    desk.submit()
    desk.submit("customers", delay_seconds=500)
    desk.end(JobStatus.FAILED, "x", name="customers")
    out = desk.run("status").out
    assert "jobs: 1 waiting; 1 waiting for a later time, the next at 20" in out
    assert "1 failed in the last day" in out
    desk.plane.start_draining(desk.control, "ana")
    assert "by ana: no new jobs are taken in" in desk.run("status").out


def test_status_lists_workers_with_what_they_take_and_hold(desk: Desk) -> None:
    desk.claim(desk.submit())
    live = desk.run("status").out
    process = f"worker: tidegate worker, process {desk.worker.pid} on {desk.worker.host}"
    assert f"{process}, takes sync, 1 of 4 jobs, last beat " in live
    assert "silent" not in live
    desk.lose_worker()
    assert "silent: its session is gone" in desk.run("status").out


def test_a_silent_worker_that_holds_nothing_is_forgotten_on_the_screen_after_an_hour(
    desk: Desk,
) -> None:
    desk.lose_worker()
    assert "silent" in desk.run("status").out
    desk.control.execute("UPDATE tidegate_control.workers SET beat_at = now() - interval '2 hours'")
    assert "worker:" not in desk.run("status").out
    assert len(desk.run("status", "--json").document["queue"]["workers"]) == 1


def test_looking_at_jobs_writes_nothing(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    before = contents(desk.place.control)
    for arguments in (
        ["status"],
        ["job", "list"],
        ["job", "show", str(job_id)],
        ["drain", "status"],
    ):
        assert desk.run(*arguments).code == DONE
    assert contents(desk.place.control) == before


def test_uninstall_refuses_while_a_worker_of_the_project_is_there_and_names_it(desk: Desk) -> None:
    before = contents(desk.place.control)
    done = desk.run("db", "uninstall", "--yes")
    assert done.code == BUSY
    assert f"tidegate worker, process {desk.worker.pid} on {desk.worker.host}" in done.err
    assert f"kill {desk.worker.pid}" in done.err
    assert contents(desk.place.control) == before
    desk.lose_worker()
    gone = desk.run("db", "uninstall", "--yes")
    assert gone.code == DONE, gone.err


def test_a_worker_of_another_project_does_not_keep_this_one_from_leaving(
    desk: Desk, make_place: MakePlace
) -> None:
    from tidegate.control.workers import Worker, Workers

    desk.lose_worker()
    desk.control.execute("DELETE FROM tidegate_control.workers")
    theirs = Worker.of_this_process("other", "tidegate worker", ("sync",))
    with desk.plane.connect() as session:
        Workers(desk.plane).register(session, theirs, "0")
        desk.submit(project="other")
        assert desk.run("db", "uninstall", "--yes").code == DONE
        assert desk.place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 1
        assert desk.run("db", "uninstall", "--yes", "--shared").code == BUSY
