"""`tidegate job list`: what is queued and what became of it, and whether anybody takes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.commands import DONE, USAGE
from integration.conftest import MakePlace
from integration.orders import ORDERS, contents
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.insight.jobs import list_jobs
from tidegate.model.job import NOTHING, JobStatus, LockAt
from tidegate.model.job_state import JobState


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


def test_a_project_where_nothing_ever_ran_has_no_jobs_and_gets_no_control_plane(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, databases=3)
    before = contents(place.source, place.target, place.control)
    found = list_jobs(place.open().context)
    assert (found.jobs, found.queue.lines()) == ((), ["0 waiting; 0 running"])
    assert contents(place.source, place.target, place.control) == before


def test_the_list_has_every_state_with_the_newest_first(desk: Desk) -> None:
    running = desk.submit("orders")
    desk.claim(running)
    blocked = desk.submit("orders")
    later = desk.submit("customers", delay_seconds=100)
    failed = desk.end(JobStatus.FAILED, "it broke: here\n  mend it", name="stock")
    done = desk.run("job", "list")
    assert done.code == DONE
    rows = [line.split() for line in done.out.splitlines()[1:5]]
    ids = [str(one) for one in (failed, later, blocked, running)]
    assert all(whole.startswith(row[0]) for row, whole in zip(rows, ids, strict=True))
    lines = done.out.splitlines()
    assert "failed" in lines[1]
    assert "1/5" in lines[1]
    assert "it broke: here" in lines[1]
    assert "mend it" not in done.out
    assert "waiting for its time" in lines[2]
    assert "waiting for its table" in lines[3]
    assert f"process {desk.worker.pid} on {desk.worker.host}" in lines[4]
    assert "1 waiting; 1 waiting for a later time, the next at" in lines[5]
    assert "1 running; 1 failed in the last day" in lines[5]


def test_the_list_is_filtered_by_status_kind_and_name_and_is_bounded(desk: Desk) -> None:
    orders = [desk.submit("orders") for _ in range(3)]
    customers = desk.submit("customers")
    nothing = desk.submit("hello", kind=NOTHING, lock_at=LockAt.NEVER, resource=None, payload={})
    failed = desk.end(JobStatus.FAILED, "x", name="stock")

    def ids(*arguments: str) -> list[str]:
        found = desk.run("job", "list", "--json", *arguments).document["jobs"]
        return [one["job_id"] for one in found]

    assert ids("--name", "orders") == [str(one) for one in reversed(orders)]
    assert ids("--name", "orders", "--limit", "2") == [str(orders[2]), str(orders[1])]
    assert ids("--kind", "noop") == [str(nothing)]
    assert ids("--status", "failed") == [str(failed)]
    assert ids("--name", "customers", "--name", "hello") == [str(nothing), str(customers)]
    for number in range(20):
        desk.submit(f"t{number}")
    assert (len(ids()), len(ids("--all"))) == (20, 26)
    assert desk.run("job", "list", "--name", "nobody").out.startswith("no such jobs")


def test_jobs_of_another_project_are_not_listed(desk: Desk) -> None:
    theirs = desk.submit(project="other")
    mine = desk.submit()
    found = list_jobs(desk.project.context)
    assert [one.job_id for one in found.jobs] == [mine]
    assert found.queue.ready == 1
    assert desk.run("job", "show", str(theirs)).code == USAGE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "snyc"], "there is no kind of job 'snyc'"),
        (["--status", "dead"], "--status"),
        (["--limit", "0"], "--limit"),
        (["--limit", "-5"], "--limit"),
        (["--limit", "100001"], "--limit"),
        (["--limit", "99999999999999999999"], "--limit"),
        (["--all", "--limit", "5"], "--all and --limit were both given"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(
    desk: Desk, arguments: list[str], words: str
) -> None:
    done = desk.run("job", "list", *arguments)
    assert done.code == USAGE
    assert words in done.err


def test_waiting_jobs_that_no_live_worker_takes_are_said_with_what_to_start(desk: Desk) -> None:
    for _ in range(3):
        desk.submit()
    served = list_jobs(desk.project.context).queue
    assert served.unserved == ()
    desk.lose_worker()
    said = desk.run("job", "list").out
    assert "3 jobs wait and no worker takes sync: start one with: tidegate worker" in said
    assert "jobs wait" not in "\n".join(served.lines())


def test_a_worker_of_other_kinds_does_not_count(make_place: MakePlace) -> None:
    with open_desk(make_place(ORDERS), kinds=(NOTHING,)) as desk:
        desk.submit()
        assert list_jobs(desk.project.context).queue.unserved == (("sync", 1),)


def test_a_job_whose_worker_is_gone_is_told_from_one_that_runs(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    (running,) = list_jobs(desk.project.context).jobs
    desk.lose_worker()
    (lost,) = list_jobs(desk.project.context).jobs
    assert (running.state, lost.state) == (JobState.RUNNING, JobState.LOST)


def test_a_failed_job_that_a_later_one_made_good_is_not_counted(desk: Desk) -> None:
    desk.end(JobStatus.FAILED, "x")
    desk.end(JobStatus.FAILED, "x", name="customers")
    assert list_jobs(desk.project.context).queue.failed_lately == 2
    desk.end(JobStatus.DONE)
    assert list_jobs(desk.project.context).queue.failed_lately == 1


def test_neither_the_newest_jobs_nor_the_unfinished_ones_are_looked_for_among_all(
    desk: Desk,
) -> None:
    desk.control.execute(
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, payload, status, lock_at,"
        " submitted_by, submitted_at)"
        " SELECT gen_random_uuid(), 'shop', 'sync', 't' || n % 50, '{}', 'done', 'never', 'x',"
        " now() - n * interval '1 minute' FROM generate_series(1, 20000) n"
    )
    waiting = desk.submit()
    desk.control.execute("ANALYZE tidegate_control.jobs; ANALYZE tidegate_control.job_queue")
    values: dict[str, object] = {"project": "shop", "job_ids": None, "kinds": None, "names": None}
    values |= {"before_at": None, "before_id": None, "limit": 20}
    text = desk.plane.statement("job_lists", "list_jobs").as_string(None)

    def plan(statuses: list[str] | None, unfinished: bool) -> str:
        rows = desk.control.execute(
            "EXPLAIN " + text,  # type: ignore[arg-type]
            values | {"statuses": statuses, "unfinished": unfinished},
        )
        return "\n".join(row[0] for row in rows)

    assert "jobs_submitted" in plan(None, False)
    for found in (plan(None, False), plan(["pending"], True)):
        assert "Seq Scan on jobs" not in found
    assert "jobs_pkey" in plan(["pending"], True)
    pending = list_jobs(desk.project.context, statuses=[JobStatus.PENDING]).jobs
    assert [one.job_id for one in pending] == [waiting]
    assert len(list_jobs(desk.project.context, statuses=[*JobStatus], limit=50).jobs) == 50


def test_a_control_plane_of_an_older_version_says_how_to_bring_it_up(desk: Desk) -> None:
    desk.control.execute("DELETE FROM tidegate_control.schema_migrations WHERE version > 1")
    done = desk.run("job", "list")
    assert done.code == USAGE
    assert "tidegate db migrate" in done.err
    status = desk.run("status")
    assert status.code == DONE
    assert "control database: the control database is at schema version 1" in status.out
