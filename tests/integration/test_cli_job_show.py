"""`tidegate job show`: what the person at 3 a.m. needs to know of a job."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from integration.commands import DONE, USAGE
from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.control.cancels import Cancels
from tidegate.insight.job_advice import advise
from tidegate.insight.jobs import JobDetail, show_job
from tidegate.model.job import PUBLISH, JobStatus, LockAt


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        yield opened


def shown(desk: Desk, job_id: UUID) -> str:
    done = desk.run("job", "show", str(job_id))
    assert done.code == DONE, done.err
    return done.out


def detail(desk: Desk, job_id: UUID) -> JobDetail:
    return show_job(desk.project.context, str(job_id))


def expire(desk: Desk, seconds: int) -> None:
    desk.control.execute(
        "UPDATE tidegate_control.job_queue SET lease_until = now() - %s * interval '1 second'",
        (seconds,),
    )


def test_a_running_job_shows_its_attempts_loads_lease_lock_and_history(desk: Desk) -> None:
    job_id = desk.submit()
    first = desk.claim(job_id)
    desk.give_back(first, "it broke\n  mend it")
    claim = desk.claim(job_id, lease_seconds=3 * 3600)
    desk.load(claim, "u1", rows=1200)
    desk.load(claim, "u2", rows=34)
    assert desk.jobs.record_progress(desk.control, claim, {"staged": 77})
    out = shown(desk, job_id)
    assert f"job {job_id}: sync orders, running" in out
    assert "into: warehouse:raw.orders" in out
    assert "by tester" in out
    assert "tries: 2 so far, 1 errors, 0 crashes; 5 of either end it" in out
    process = f"process {desk.worker.pid} on {desk.worker.host}"
    assert f"works on it: {process} (tidegate worker), last beat" in out
    assert "1. error, " + process in out
    assert "it broke;   mend it" in out
    assert f"2. at work, {process}" in out
    assert claim.attempt_id in out
    assert "steps (2 loads, 1,234 rows):" in out
    assert "load 1: 1,200 rows" in out
    assert "progress: staged 77" in out
    assert "lease: 3 h left" in out
    assert "lock: has postgres:" in out
    events = [line for line in out.splitlines() if " UTC " in line and ", tester" in line]
    assert ["submitted" in events[0], "to be retried" in events[1]] == [True, True]
    assert f"to stop it: tidegate job cancel {job_id}" in out


def test_a_lease_that_ran_out_says_since_when_and_who_takes_over(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    expire(desk, 3 * 3600)
    out = shown(desk, job_id)
    assert "running, lease over" in out
    assert "ran out 3 h ago: the next worker or run takes it over" in out
    assert "it is stuck" in out
    assert "tidegate run orders" in out


def test_a_worker_whose_session_is_gone_is_said_before_its_lease_is_over(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    desk.lose_worker()
    out = shown(desk, job_id)
    assert "running, worker gone" in out
    assert "its session is gone" in out
    assert "left, but the next worker or run takes it over at once" in out


def test_a_job_that_waits_for_its_table_names_the_one_that_has_it(desk: Desk) -> None:
    holder = desk.submit()
    desk.claim(holder)
    job_id = desk.submit()
    out = shown(desk, job_id)
    assert "waiting for its table" in out
    assert f"held by job {holder} (orders, running)" in out
    assert f"tidegate job show {holder}" in out


def test_a_job_that_holds_its_table_while_it_waits_says_so(desk: Desk) -> None:
    out = shown(desk, desk.submit(lock_at=LockAt.SUBMIT))
    assert "lock: has postgres:" in out
    assert "it waits for a free worker" in out


def test_a_job_for_later_says_when_and_one_for_a_free_table_that_it_is_free(desk: Desk) -> None:
    out = shown(desk, desk.submit(delay_seconds=1000))
    assert "what to do:\n  its time comes at 20" in out
    assert "is free; taken when it starts" in out


def test_a_job_that_is_tried_again_later_says_when_and_how_often_still(desk: Desk) -> None:
    job_id = desk.submit(max_attempts=3)
    claim = desk.claim(job_id)
    desk.give_back(claim, "y", delay_seconds=500)
    advice = advise(detail(desk, job_id))[0]
    assert "it is tried again at 20" in advice
    assert "1 errors and 0 crashes so far, 3 of either end it" in advice


def test_a_waiting_job_that_nobody_takes_says_what_to_start(desk: Desk) -> None:
    job_id = desk.submit()
    desk.lose_worker()
    assert "no worker takes sync: start one with: tidegate worker" in shown(desk, job_id)


def test_a_dead_job_says_that_its_attempts_are_used_up_and_how_to_retry(desk: Desk) -> None:
    job_id = desk.submit(max_attempts=2)
    desk.give_back(desk.claim(job_id), "one")
    desk.jobs.finish(
        desk.control, desk.claim(job_id), JobStatus.FAILED, actor="x", error="two\n  mend it"
    )
    out = shown(desk, job_id)
    assert "error:\n  two\n  mend it" in out
    assert "its attempts are used up (2 errors, 0 crashes, at most 2): it is dead" in out
    assert f"tidegate job retry {job_id}" in out


def test_a_failed_job_that_was_made_good_or_retried_leads_there(desk: Desk) -> None:
    first = desk.end(JobStatus.FAILED, "x")
    second = desk.end(JobStatus.DONE)
    assert advise(detail(desk, first)) == [f"a later job of this name is done: {second}"]
    third = desk.end(JobStatus.FAILED, "x", name="customers")
    again = desk.submit("customers", retry_of=third)
    assert detail(desk, third).retried_as == again
    assert advise(detail(desk, third)) == [f"it was retried: tidegate job show {again}"]
    assert f"retry of: {third}" in shown(desk, again)
    assert advise(detail(desk, second)) == []


def test_a_job_that_is_being_cancelled_says_by_whom(desk: Desk) -> None:
    job_id = desk.submit()
    desk.claim(job_id)
    cancels = Cancels(desk.plane)
    assert cancels.request(desk.control, job_id, actor="ana", patience_seconds=30)
    out = shown(desk, job_id)
    assert "being cancelled" in out
    assert "ana cancels it since" in out
    expire(desk, 5)
    assert "whoever cancels it has not ended it: the next worker does" in shown(desk, job_id)


def test_work_of_a_command_or_a_script_is_repeated_there(desk: Desk) -> None:
    payload = {"target": "warehouse:raw.orders", "command": "tidegate adopt"}
    adopt = desk.end(JobStatus.FAILED, "x", payload=payload)
    assert "give the command again: tidegate adopt orders" in shown(desk, adopt)
    publish = desk.end(JobStatus.FAILED, "x", kind=PUBLISH, name="revenue")
    assert "run its script again, with the same update_id" in shown(desk, publish)


def test_draining_is_said_where_it_matters(desk: Desk) -> None:
    waiting, failed = desk.submit(), desk.end(JobStatus.FAILED, "x", name="customers")
    desk.plane.start_draining(desk.control, "ana")
    assert "draining does not touch it" in shown(desk, waiting)
    assert "no new jobs are taken in, by ana: tidegate drain off" in shown(desk, failed)


def test_of_many_steps_the_screen_shows_the_last_and_the_document_all(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    for number in range(25):
        desk.load(claim, f"u{number}", rows=2)
    out = shown(desk, job_id)
    assert "steps (25 loads, 50 rows), the last 20 of 25:" in out
    assert ("load 6:" in out, "load 5:" in out, "load 25:" in out) == (True, False, True)
    assert len(desk.run("job", "show", str(job_id), "--json").document["actions"]) == 25


def test_the_document_holds_all_of_it(desk: Desk) -> None:
    job_id = desk.submit()
    claim = desk.claim(job_id)
    desk.load(claim, "u1")
    found = desk.run("job", "show", str(job_id), "--json").document
    assert found["job_id"] == str(job_id)
    assert (found["status"], found["state"]) == ("running", "running")
    assert found["attempts"][0]["attempt_id"] == claim.attempt_id
    assert found["actions"][0]["detail"]["update_id"] == "u1"
    assert [one["event"] for one in found["audit"]] == ["submitted", "claimed"]
    assert found["lock"]["job_id"] == str(job_id)
    assert found["advice"]


def test_the_beginning_of_an_id_will_do_where_it_is_unique(desk: Desk) -> None:
    one, other = desk.submit(), desk.submit("customers")
    length = next(n for n in range(36) if str(one)[: n + 1] != str(other)[: n + 1]) + 1
    assert f"job {one}:" in desk.run("job", "show", str(one)[:length]).out
    assert f"job {one}:" in desk.run("job", "show", one.hex.upper()).out
    ambiguous = desk.run("job", "show", str(one)[:4])
    assert ambiguous.code == USAGE
    assert f"{one} (sync orders, pending)" in ambiguous.err
    assert f"{other} (sync customers, pending)" in ambiguous.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("orders", "'orders' is not the id of a job"),
        ("019a' OR true --", "is not the id of a job"),
        ("0" * 33, "is not the id of a job"),
        ("ffffffff-ffff-4fff-bfff-ffffffffffff", "there is no job ffffffff"),
    ],
)
def test_an_id_that_is_none_is_refused_by_every_command_and_nothing_changes(
    desk: Desk, text: str, words: str
) -> None:
    desk.claim(desk.submit())
    before = desk.counts()
    for command in ("show", "cancel", "retry"):
        done = desk.run("job", command, text)
        assert done.code == USAGE
        assert words in done.err
        assert "tidegate job list" in done.err
    assert desk.counts() == before


def test_a_job_of_a_project_that_never_ran_is_unknown(make_place: MakePlace) -> None:
    with make_place(ORDERS).open() as project, pytest.raises(Exception, match="there is no job"):
        show_job(project.context, "019a")
