"""`tidegate job list`, `show`, `cancel` and `retry`: what they say is so."""

from __future__ import annotations

from uuid import UUID

import pytest
from typer.testing import CliRunner

from integration.commands import BUSY, DONE, FAILED, USAGE
from integration.conftest import MakePlace
from integration.job_store import shared
from integration.orders import ORDERS, contents
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.cli.main import app
from tidegate.core.errors import UsageError
from tidegate.jobs import control_database
from tidegate.jobs.cancel import Cancels
from tidegate.jobs.job import NOTHING, PUBLISH, JobState, JobStatus, LockAt
from tidegate.jobs.job_view import JobDetail, advise, list_jobs, show_job

ADOPT = {"target": "warehouse:raw.orders", "command": "tidegate adopt"}


opened, desk = shared(lambda places: open_desk(places(ORDERS, CUSTOMERS)))


def shown(desk: Desk, job_id: UUID) -> str:
    done = desk.run("job", "show", str(job_id))
    assert done.code == DONE, done.err
    return done.out


def detail(desk: Desk, job_id: UUID) -> JobDetail:
    return show_job(desk.project.context, str(job_id))


# List


def test_a_project_where_nothing_ever_ran_has_no_jobs_no_history_and_no_control_plane(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, databases=3, installed=False)
    before = contents(place.source, place.target, place.control)
    with place.open() as project:
        found = list_jobs(project.context)
        assert (found.jobs, found.queue.lines()) == ((), ["0 waiting; 0 running"])
        with pytest.raises(Exception, match="there is no job"):
            show_job(project.context, "019a")
        assert list(project.history.find_all_runs()) == []
        assert project.history.trends() == []
    assert contents(place.source, place.target, place.control) == before


def test_the_list_has_every_state_with_the_newest_first(desk: Desk) -> None:
    running = desk.submit("orders")
    desk.claim(running)
    blocked = desk.submit("orders")
    later = desk.submit("customers", delay_seconds=100)
    failed = desk.end(JobStatus.FAILED, "it broke: here\n  mend it", name="stock")
    theirs = desk.submit(project="other")
    done = desk.run("job", "list")
    assert done.code == DONE
    lines = done.out.splitlines()
    ids = [str(one) for one in (failed, later, blocked, running)]
    for number, words in enumerate(
        (
            ("failed", "1/5", "it broke: here"),
            ("waiting for its time",),
            ("waiting for its table",),
            (f"process {desk.worker.pid} on {desk.worker.host}",),
            (
                "1 waiting; 1 waiting for a later time, the next at",
                "1 running; 1 failed in the last day",
            ),
        ),
        1,
    ):
        if number <= len(ids):
            assert ids[number - 1].startswith(lines[number].split()[0])
        for word in words:
            assert word in lines[number], word
    assert "mend it" not in done.out
    assert desk.run("job", "show", str(theirs)).code == USAGE
    desk.lose_worker()
    states = {one.job_id: one.state for one in list_jobs(desk.project.context).jobs}
    assert states[running] is JobState.LOST


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


def test_a_list_that_makes_no_sense_is_refused(desk: Desk) -> None:
    for arguments, words in (
        (["--kind", "snyc"], "there is no kind of job 'snyc'"),
        (["--status", "dead"], "--status"),
        (["--limit", "0"], "--limit"),
        (["--limit", "-5"], "--limit"),
        (["--limit", "100001"], "--limit"),
        (["--limit", "99999999999999999999"], "--limit"),
        (["--all", "--limit", "5"], "--all and --limit were both given"),
    ):
        done = desk.run("job", "list", *arguments)
        assert (done.code, words in done.err) == (USAGE, True), arguments


def test_waiting_jobs_that_no_live_worker_takes_are_said_with_what_to_start(
    desk: Desk, make_place: MakePlace
) -> None:
    for _ in range(3):
        job_id = desk.submit()
    served = list_jobs(desk.project.context).queue
    assert served.unserved == ()
    assert "jobs wait" not in "\n".join(served.lines())
    desk.lose_worker()
    said = desk.run("job", "list").out
    assert "3 jobs wait and no worker takes sync: start one with: tidegate worker" in said
    assert "no worker takes sync: start one with: tidegate worker" in shown(desk, job_id)
    with open_desk(make_place(ORDERS), kinds=(NOTHING,)) as other:
        other.submit()
        assert list_jobs(other.project.context).queue.unserved == (("sync", 1),)


def test_a_failed_job_that_a_later_one_made_good_or_retries_leads_there(desk: Desk) -> None:
    first = desk.end(JobStatus.FAILED, "x")
    third = desk.end(JobStatus.FAILED, "x", name="customers")
    assert list_jobs(desk.project.context).queue.failed_lately == 2
    second = desk.end(JobStatus.DONE)
    assert list_jobs(desk.project.context).queue.failed_lately == 1
    assert advise(detail(desk, first)) == [f"a later job of this name is done: {second}"]
    again = desk.submit("customers", retry_of=third)
    assert detail(desk, third).retried_as == again
    assert advise(detail(desk, third)) == [f"it was retried: tidegate job show {again}"]
    assert f"retry of: {third}" in shown(desk, again)
    assert advise(detail(desk, second)) == []


def test_a_control_plane_of_an_older_version_says_how_to_bring_it_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_database, "SCHEMA_SCRIPTS", ("jobs/schema", "jobs/next"))
    folder = str(desk.place.folder)
    done = CliRunner().invoke(app, ["job", "list", "--project", folder])
    assert isinstance(done.exception, UsageError)
    assert "tidegate db migrate" in str(done.exception)
    status = CliRunner().invoke(app, ["status", "--project", folder])
    assert status.exit_code == DONE
    assert "control database: the control database is at schema version 1" in status.output


# Show


def test_a_running_job_shows_its_attempts_loads_lease_lock_and_history(desk: Desk) -> None:
    job_id = desk.submit()
    desk.give_back(desk.claim(job_id), "it broke\n  mend it")
    claim = desk.claim(job_id, lease_seconds=3 * 3600)
    desk.load(claim, "u1", rows=1200)
    desk.load(claim, "u2", rows=34)
    assert desk.jobs.record_progress(desk.control, claim, {"staged": 77})
    out = shown(desk, job_id)
    process = f"process {desk.worker.pid} on {desk.worker.host}"
    for words in (
        f"job {job_id}: sync orders, running",
        "into: warehouse:raw.orders",
        "by tester",
        "tries: 2 so far, 1 errors, 0 crashes; 5 of either end it",
        f"works on it: {process} (tidegate worker), last beat",
        f"1. error, {process}",
        "it broke;   mend it",
        f"2. at work, {process}",
        claim.attempt_id,
        "steps (2 loads, 1,234 rows):",
        "load 1: 1,200 rows",
        "progress: staged 77",
        "lease: 3 h left",
        "lock: has postgres:",
        f"to stop it: tidegate job cancel {job_id}",
    ):
        assert words in out, words
    events = [line for line in out.splitlines() if " UTC " in line and ", tester" in line]
    assert ["submitted" in events[0], "to be retried" in events[1]] == [True, True]
    found = desk.run("job", "show", str(job_id), "--json").document
    assert (found["job_id"], found["status"], found["state"]) == (str(job_id), *["running"] * 2)
    assert found["attempts"][-1]["attempt_id"] == claim.attempt_id
    assert found["actions"][0]["detail"]["update_id"] == "u1"
    assert [one["event"] for one in found["audit"]][:2] == ["submitted", "claimed"]
    assert found["lock"]["job_id"] == str(job_id)
    assert found["advice"]


def test_a_job_whose_lease_or_worker_is_gone_says_who_takes_over(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    desk.lose_worker()
    out = shown(desk, job_id)
    assert "running, worker gone" in out
    assert "its session is gone" in out
    assert "left, but the next worker or run takes it over at once" in out
    desk.expire(job_id, 3 * 3600)
    out = shown(desk, job_id)
    assert "running, lease over" in out
    assert "ran out 3 h ago: the next worker or run takes it over" in out
    assert "it is stuck" in out
    assert "tidegate run orders" in out


def test_a_waiting_job_says_what_it_waits_for(desk: Desk) -> None:
    holder = desk.submit()
    desk.claim(holder)
    waits = shown(desk, desk.submit())
    assert "waiting for its table" in waits
    assert f"held by job {holder} (orders, running)" in waits
    assert f"tidegate job show {holder}" in waits
    holds = shown(desk, desk.submit("stock", lock_at=LockAt.SUBMIT))
    assert "lock: has postgres:" in holds
    assert "it waits for a free worker" in holds
    later = shown(desk, desk.submit("customers", delay_seconds=1000))
    assert "what to do:\n  its time comes at 20" in later
    assert "is free; taken when it starts" in later
    again = desk.submit("again", max_attempts=3)
    desk.give_back(desk.claim(again), "y", delay_seconds=500)
    advice = advise(detail(desk, again))[0]
    assert "it is tried again at 20" in advice
    assert "1 errors and 0 crashes so far, 3 of either end it" in advice


def test_a_failed_job_says_how_to_repeat_it(desk: Desk) -> None:
    job_id = desk.submit(max_attempts=2)
    desk.give_back(desk.claim(job_id), "one")
    desk.finish(desk.claim(job_id), JobStatus.FAILED, "two\n  mend it")
    out = shown(desk, job_id)
    assert "error:\n  two\n  mend it" in out
    assert "its attempts are used up (2 errors, 0 crashes, at most 2): it is dead" in out
    assert f"tidegate job retry {job_id}" in out
    adopt = desk.end(JobStatus.FAILED, "x", payload=ADOPT)
    assert "give the command again: tidegate adopt orders" in shown(desk, adopt)
    publish = desk.end(JobStatus.FAILED, "x", kind=PUBLISH, name="revenue")
    assert "run its script again, with the same update_id" in shown(desk, publish)
    waiting = desk.submit("customers")
    desk.plane.start_draining(desk.control, "ana")
    assert "draining does not touch it" in shown(desk, waiting)
    assert "no new jobs are taken in, by ana: tidegate drain off" in shown(desk, job_id)


def test_a_job_that_is_being_cancelled_says_by_whom(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    cancels = Cancels(desk.plane)
    assert cancels.request(desk.control, job_id, actor="ana", patience_seconds=30)
    out = shown(desk, job_id)
    assert "being cancelled" in out
    assert "ana cancels it since" in out
    desk.expire(job_id, 5)
    assert "whoever cancels it has not ended it: the next worker does" in shown(desk, job_id)


def test_of_many_steps_the_screen_shows_the_last_and_the_document_all(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    for number in range(25):
        desk.load(claim, f"u{number}", rows=2)
    out = shown(desk, job_id)
    assert "steps (25 loads, 50 rows), the last 20 of 25:" in out
    assert ("load 6:" in out, "load 5:" in out, "load 25:" in out) == (True, False, True)
    assert len(desk.run("job", "show", str(job_id), "--json").document["actions"]) == 25


def test_the_beginning_of_an_id_will_do_where_it_is_unique(desk: Desk) -> None:
    one, other = desk.submit(), desk.submit("customers")
    length = next(n for n in range(36) if str(one)[: n + 1] != str(other)[: n + 1]) + 1
    assert f"job {one}:" in desk.run("job", "show", str(one)[:length]).out
    assert f"job {one}:" in desk.run("job", "show", one.hex.upper()).out
    ambiguous = desk.run("job", "show", str(one)[:4])
    assert ambiguous.code == USAGE
    assert f"{one} (sync orders, pending)" in ambiguous.err
    assert f"{other} (sync customers, pending)" in ambiguous.err


def test_an_id_that_is_none_is_refused_by_every_command_and_nothing_changes(desk: Desk) -> None:
    desk.claim(desk.submit())
    before = desk.counts()
    unknown = "ffffffff-ffff-4fff-bfff-ffffffffffff"
    for command, text, words in (
        ("show", "orders", "'orders' is not the id of a job"),
        ("show", "0" * 33, "is not the id of a job"),
        ("cancel", "019a' OR true --", "is not the id of a job"),
        ("retry", "019a' OR true --", "is not the id of a job"),
        *((one, unknown, "there is no job ffffffff") for one in ("show", "cancel", "retry")),
    ):
        done = desk.run("job", command, text)
        assert done.code == USAGE
        assert words in done.err
        assert "tidegate job list" in done.err
    assert desk.counts() == before


# Cancel


def mark(desk: Desk, update_id: str) -> None:
    """A load is in: its marker is."""
    destination = desk.project.context.destination(desk.project.syncs["orders"].target)
    destination.ledger.ensure()
    marker = desk.project.marker("warehouse:raw.orders", update_id=update_id)
    with desk.project.connect("warehouse") as connection:
        marker.touch(connection)


def test_a_cancelled_job_and_its_attempt_write_nothing_more(desk: Desk) -> None:
    running, waiting = desk.submit(), desk.submit("customers")
    claim = desk.claim(running)
    done = desk.run("job", "cancel", str(running), str(waiting), running.hex)
    assert done.code == DONE
    assert done.out.count("cancelled: ") == 2
    for job_id, name in ((running, "orders"), (waiting, "customers")):
        assert f"job {job_id} ({name}): cancelled: nothing of it was published" in done.out
        assert desk.status(job_id) == "cancelled"
    assert not desk.finish(claim)
    assert (desk.counts()["table_locks"], desk.counts()["job_queue"]) == (0, 0)


def test_loads_that_were_published_before_a_cancel_are_counted(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    desk.load(claim, "u2")
    # This one is planned, and not in.
    desk.jobs.store_plan(desk.control, claim, {"update_id": "not in", "final": False})
    assert desk.run("job", "cancel", str(job_id), "--json").document == [
        {
            "job": str(job_id),
            "name": "orders",
            "status": "cancelled",
            "loads_published": 2,
            "error": None,
            "hint": None,
        }
    ]
    # Here the attempt was between its commit and its note when the cancel came.
    second = desk.submit()
    claim = desk.claim(second)
    desk.load(claim, "u3")
    desk.jobs.store_plan(desk.control, claim, {"update_id": "u4", "final": False})
    mark(desk, "u4")
    said = desk.run("job", "cancel", str(second)).out
    assert "cancelled: 2 loads published earlier stay" in said


def test_a_cancel_that_comes_after_the_last_load_says_that_the_job_is_done(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.jobs.store_plan(desk.control, claim, {"update_id": "last", "final": True})
    mark(desk, "last")
    done = desk.run("job", "cancel", str(job_id))
    assert (done.code, desk.status(job_id)) == (DONE, "done")
    assert "done: its load was published before the cancel could reach it" in done.out


def test_a_finished_job_is_not_cancelled_and_keeps_the_others_from_it(desk: Desk) -> None:
    waiting = desk.submit("customers")
    for status in (one for one in JobStatus if one.is_terminal):
        ended = desk.end(status)
        before = desk.counts()
        done = desk.run("job", "cancel", str(waiting), str(ended))
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
    desk.execute('UPDATE jobs SET payload = \'{"target": "warehouse:raw.orders"}\'')
    assert desk.run("job", "cancel", str(job_id)).code == DONE
    assert desk.status(job_id) == "cancelled"


# Retry


def test_a_retry_is_a_new_job_for_the_same_work(desk: Desk) -> None:
    for status in (JobStatus.FAILED, JobStatus.CANCELLED):
        desk.clean()
        old = desk.end(status, "x", priority=7, max_attempts=3, unique_key="sync:orders")
        done = desk.run("job", "retry", str(old), "--json")
        assert done.code == DONE
        assert (done.document["retry_of"], done.document["created"]) == (str(old), True)
        before, after = desk.get(old), desk.get(UUID(done.document["job"]))
        assert (after.retry_of, after.status) == (old, JobStatus.PENDING)
        for name in ("kind", "name", "payload", "resource", "priority", "lock_at", "max_attempts"):
            assert getattr(after, name) == getattr(before, name), name
        assert (before.status, after.plan, after.attempt_count) == (status, None, 0)
        again = desk.run("job", "retry", str(old))
        assert again.code == DONE
        assert f"another job does this already: {after.job_id}" in again.out
        assert desk.counts()["jobs"] == 2


def test_what_cannot_be_retried_is_refused_and_nothing_changes(desk: Desk) -> None:
    held = desk.end(JobStatus.FAILED, "x", lock_at=LockAt.SUBMIT)
    running = desk.submit()
    desk.claim(running)
    refusals = {
        held: (BUSY, "its table is held by job"),
        running: (USAGE, "is running; only a failed or cancelled job is retried"),
        desk.submit("customers"): (USAGE, "is pending; only a failed or cancelled job is retried"),
        desk.end(JobStatus.DONE, name="done"): (USAGE, "is done; only a failed or cancelled job"),
        desk.end(JobStatus.FAILED, "x", name="published", kind=PUBLISH): (
            USAGE,
            "published a DataFrame, which is not kept",
        ),
        desk.end(JobStatus.FAILED, "x", resource="r", payload=ADOPT): (
            USAGE,
            "give it again: tidegate adopt orders",
        ),
    }
    free = desk.end(JobStatus.FAILED, "x", kind=NOTHING, lock_at=LockAt.NEVER, resource=None)
    before = desk.counts()
    for job_id, (code, words) in refusals.items():
        done = desk.run("job", "retry", str(job_id))
        assert (done.code, words in done.err) == (code, True), done
    desk.plane.start_draining(desk.control, "ana")
    done = desk.run("job", "retry", str(free))
    assert (done.code, "ana drains this control plane" in done.err) == (BUSY, True)
    assert desk.counts() == before
    desk.plane.stop_draining(desk.control)
    assert desk.run("job", "retry", str(free)).code == DONE
