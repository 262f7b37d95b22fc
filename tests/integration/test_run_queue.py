"""`tidegate run --queue`, `Project.submit` and `tidegate drain`: work for others, and none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from uuid import UUID

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE
from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.control.job_records import JobRecord, JobRecords
from tidegate.errors import BusyError, UsageError
from tidegate.model.job import JobStatus, LockAt

GROUP = {"name": "all", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
BAD = {**ORDERS, "name": "bad", "cursor": "nope", "target": "warehouse:raw.bad"}


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS, BAD)) as opened:
        yield opened


def record(desk: Desk, job_id: str | UUID) -> JobRecord:
    found = JobRecords(desk.plane).get(desk.control, UUID(str(job_id)))
    assert found is not None
    return found


def test_a_queued_sync_waits_for_a_worker_and_the_command_says_what_to_type_next(
    desk: Desk,
) -> None:
    done = desk.run("run", "orders", "--queue")
    assert done.code == DONE, done.err
    (job_id,) = desk.place.control.execute("SELECT job_id FROM tidegate_control.jobs")[0]
    assert f"orders: queued as job {job_id}" in done.out
    assert f"tidegate job show {job_id} --follow" in done.out
    assert "no worker" not in done.out
    found = record(desk, job_id)
    assert (found.kind, found.name, found.status) == ("sync", "orders", JobStatus.PENDING)
    assert (found.lock_at, found.unique_key) == (LockAt.CLAIM, "sync:orders")
    assert found.payload == {"target": "warehouse:raw.orders", "full_refresh": False}
    assert found.priority == 0
    assert desk.counts()["table_locks"] == 0
    assert "(tidegate run --queue)" in found.submitted_by
    desk.claim(job_id)


def test_what_may_be_removed_is_said_where_it_means_something(desk: Desk) -> None:
    done = desk.run("run", "orders", "--queue", "--full-refresh", "--allow-removal", "--json")
    assert record(desk, done.document[0]["job"]).payload == {
        "target": "warehouse:raw.orders",
        "full_refresh": True,
        "allow_removal": True,
    }
    for command in (["verify", "orders"], ["backfill", "orders", "--from", "1", "--to", "2"]):
        done = desk.run(*command, "--allow-removal")
        assert (done.code, "--allow-removal is for" in done.err) == (USAGE, True)


def test_without_a_worker_the_command_says_how_to_start_one(desk: Desk) -> None:
    desk.lose_worker()
    said = desk.run("run", "orders", "--queue").out
    assert "no worker takes sync now: start one with: tidegate worker" in said


def test_a_sync_that_waits_or_runs_already_is_not_queued_twice(desk: Desk) -> None:
    (first,) = desk.run("run", "orders", "--queue", "--json").document
    before = desk.counts()
    again = desk.run("run", "orders", "--queue")
    assert again.code == DONE
    assert f"orders: not queued again: it is job {first['job']} already (waiting)" in again.out
    desk.claim(UUID(first["job"]))
    before = desk.counts()
    running = desk.run("run", "orders", "--queue", "--json").document
    assert (running[0]["job"], running[0]["created"]) == (first["job"], False)
    assert desk.counts() == before


def test_options_of_the_queue_reach_the_job(desk: Desk) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    for naive in (True, False):
        text = at.replace(tzinfo=None).isoformat(" ") if naive else at.isoformat()
        (found,) = desk.run(
            "run", "orders", "--queue", "--json", "--full-refresh", "--priority", "9", "--at", text
        ).document
        job = record(desk, found["job"])
        assert (job.priority, job.visible_at, job.payload["full_refresh"]) == (9, at, True)
        assert "to run at" in found["said"]
        assert desk.run("job", "cancel", found["job"]).code == DONE
    (late,) = desk.run("run", "orders", "--queue", "--json", "--delay", "10 min").document
    job = record(desk, late["job"])
    assert job.visible_at is not None
    assert job.visible_at - job.submitted_at == timedelta(minutes=10)


def test_an_idempotency_key_gives_the_same_job_even_when_it_has_ended(desk: Desk) -> None:
    def submit(*arguments: str) -> list[dict[str, str]]:
        found = desk.run("run", *arguments, "--queue", "--json", "--idempotency-key", "monday")
        return list(found.document)

    (first,) = submit("orders")
    claim = desk.claim(UUID(first["job"]))
    desk.jobs.finish(desk.control, claim, JobStatus.DONE, actor="x")
    before = desk.counts()
    assert submit("orders")[0]["job"] == first["job"]
    assert "asks for something else" in submit("customers")[0]["error"]
    assert desk.counts() == before
    several = [one["job"] for one in submit("orders", "customers")]
    assert len({*several, first["job"]}) == 3
    assert [one["job"] for one in submit("orders", "customers")] == several


def test_a_group_submits_each_of_its_tables(make_place: MakePlace) -> None:
    with open_desk(make_place(GROUP)) as desk:
        found = desk.run("run", "all", "--queue", "--json").document
        assert [one["sync"] for one in found] == ["all.customers", "all.orders"]
        assert desk.counts()["job_queue"] == 2


def test_a_bad_declaration_is_refused_at_submit_and_does_not_stop_the_others(desk: Desk) -> None:
    before = desk.counts()
    alone = desk.run("run", "bad", "--queue")
    assert alone.code == USAGE
    assert "cursor nope does not exist" in alone.err
    assert desk.counts() == before
    both = desk.run("run", "bad", "orders", "--queue")
    assert both.code == USAGE
    assert "orders: queued as job" in both.out
    assert desk.counts()["jobs"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ordres", "--queue"], "there is no sync ordres"),
        (["--queue"], "which sync?"),
        (["orders", "--queue", "--max-batches", "1"], "--max-batches cannot be given with"),
        (["orders", "--queue", "--concurrency", "1"], "--concurrency cannot be given with"),
        (["orders", "--queue", "--take-over"], "--take-over cannot be given with"),
        (["orders", "--follow"], "--follow is for queued jobs"),
        (["orders", "--priority", "1"], "--priority is for queued jobs"),
        (["orders", "--at", "2999-01-01"], "--at is for queued jobs"),
        (["orders", "--delay", "1s"], "--delay is for queued jobs"),
        (["orders", "--idempotency-key", "k"], "--idempotency-key is for queued jobs"),
        (["orders", "--queue", "--priority", "1001"], "--priority"),
        (["orders", "--queue", "--at", "tomorrow"], "is not a time"),
        (["orders", "--queue", "--at", "2020-01-01"], "is in the past"),
        (["orders", "--queue", "--delay", "soon"], "is not a duration"),
        (["orders", "--queue", "--delay", "-5"], "is not a duration"),
        (["orders", "--queue", "--at", "2999-01-01", "--delay", "1s"], "were both given"),
        (["orders", "--queue", "--idempotency-key", " "], "idempotency key is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_changes(
    desk: Desk, arguments: list[str], words: str
) -> None:
    before = desk.counts()
    done = desk.run("run", *arguments)
    assert done.code == USAGE, done.said
    assert words in done.err
    assert desk.counts() == before


def test_a_source_that_is_not_there_is_refused_at_submit(make_place: MakePlace) -> None:
    with open_desk(make_place({**ORDERS, "source": "shop:public.ordres"})) as desk:
        before = desk.counts()
        done = desk.run("run", "orders", "--queue")
        assert done.code == FAILED
        assert "table public.ordres does not exist" in done.err
        assert desk.counts() == before


def test_draining_refuses_new_jobs_and_works_off_old_ones(desk: Desk) -> None:
    waiting = desk.submit("customers")
    desk.claim(desk.submit())
    on = desk.run("drain", "on")
    assert on.code == DONE
    assert "no new jobs are taken in since 20" in on.out
    assert "1 still queued, 1 running" in on.out
    before = desk.counts()
    refused = desk.run("run", "orders", "--queue")
    assert refused.code == BUSY
    assert "tidegate drain off" in refused.err
    assert desk.counts() == before
    with pytest.raises(BusyError, match="drains this control plane"):
        desk.project.submit("orders")
    again = desk.run("drain", "on", "--json").document
    assert (again["draining"], again["changed"], again["queued"]) == (True, False, 1)
    desk.claim(waiting)
    assert desk.run("drain", "status", "--json").document["running"] == 2
    assert "draining since" in desk.run("job", "list").out
    off = desk.run("drain", "off")
    assert (off.code, off.out.splitlines()[0]) == (DONE, "new jobs are taken in")
    assert desk.run("drain", "off", "--json").document["changed"] is False
    assert desk.run("run", "customers", "--queue").code == DONE


def test_the_drain_says_when_nothing_is_left(desk: Desk) -> None:
    desk.run("drain", "on")
    assert "it is drained" in desk.run("drain", "status").out


def test_a_project_that_never_ran_does_not_drain_and_gets_no_control_plane(
    make_place: MakePlace,
) -> None:
    from tidegate.insight.draining import read_draining, stop_draining

    with make_place(ORDERS, databases=3).open() as project:
        assert read_draining(project.context).draining is None
        assert stop_draining(project.context)[1] is False
        with project.connect("control") as connection:
            assert project.context.plane.version(connection) == 0


def test_submit_gives_a_handle_that_waits_for_the_end(desk: Desk) -> None:
    queued = desk.project.submit("orders", priority=3, delay=0.0)
    assert queued.created
    assert record(desk, queued.job_id).priority == 3
    again = desk.project.submit("orders")
    assert (again.job_id, again.created, again.state()) == (queued.job_id, False, "waiting")
    with pytest.raises(BusyError, match=r"is still pending after 0\.1 seconds"):
        queued.wait(timeout=0.1)
    claim = desk.claim(queued.job_id)
    ending = Thread(
        target=desk.jobs.finish,
        args=(desk.control, claim, JobStatus.FAILED),
        kwargs={"actor": "x", "error": "it broke"},
    )
    ending.start()
    ended = queued.wait(timeout=30)
    ending.join()
    assert (ended.status, ended.error) == (JobStatus.FAILED, "it broke")


def test_submit_refuses_what_makes_no_sense(desk: Desk) -> None:
    before = desk.counts()
    for options, words in (
        ({"priority": 5000}, "priority 5000 is out of range"),
        ({"at": datetime(2999, 1, 1)}, "has no time zone"),
        ({"delay": "soon"}, "delay = 'soon'"),
    ):
        with pytest.raises(UsageError, match=words):
            desk.project.submit("orders", **options)
    with pytest.raises(UsageError, match="there is no sync nothing"):
        desk.project.submit("nothing")
    assert desk.counts() == before
