"""`tidegate run --queue`, `Project.submit`, `tidegate drain`, and jobs that cannot be right."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE
from integration.conftest import MakePlace
from integration.job_store import shared
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.core.errors import BusyError, SettingsError, UsageError
from tidegate.jobs.cancel import cancel_job
from tidegate.jobs.drain import read_draining, stop_draining
from tidegate.jobs.job import JobStatus, LockAt
from tidegate.project import Project

GROUP = {"name": "all", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
BAD = {**ORDERS, "name": "bad", "cursor": "nope", "target": "warehouse:raw.bad"}
NOWHERE = {**ORDERS, "name": "nowhere", "source": "shop:public.ordres", "target": "warehouse:raw.n"}


opened, desk = shared(lambda places: open_desk(places(ORDERS, CUSTOMERS, BAD, NOWHERE)))


def test_a_queued_sync_waits_for_a_worker_and_is_not_queued_twice(desk: Desk) -> None:
    done = desk.run("run", "orders", "--queue")
    assert done.code == DONE, done.err
    job_id = desk.value("SELECT job_id FROM jobs")
    assert f"orders: queued as job {job_id}" in done.out
    assert f"tidegate job show {job_id} --follow" in done.out
    assert "no worker" not in done.out
    found = desk.get(job_id)
    assert (found.kind, found.name, found.status) == ("sync", "orders", JobStatus.PENDING)
    assert (found.lock_at, found.unique_key) == (LockAt.CLAIM, "sync:orders")
    assert found.payload == {"target": "warehouse:raw.orders", "full_refresh": False}
    assert found.priority == 0
    assert desk.counts()["table_locks"] == 0
    assert "(tidegate run --queue)" in found.submitted_by
    before = desk.counts()
    again = desk.run("run", "orders", "--queue")
    assert again.code == DONE
    assert f"orders: not queued again: it is job {job_id} already (waiting)" in again.out
    assert desk.counts() == before
    desk.claim(job_id)
    before = desk.counts()
    (running,) = desk.run("run", "orders", "--queue", "--json").document
    assert (running["job"], running["created"]) == (str(job_id), False)
    assert desk.counts() == before
    desk.lose_worker()
    said = desk.run("run", "customers", "--queue").out
    assert "no worker takes sync now: start one with: tidegate worker" in said


def test_options_of_the_queue_reach_the_job(desk: Desk) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    for text in (at.replace(tzinfo=None).isoformat(" "), at.isoformat()):
        options = ("--full-refresh", "--allow-removal", "--priority", "9", "--at", text)
        (found,) = desk.run("run", "orders", "--queue", "--json", *options).document
        job = desk.get(UUID(found["job"]))
        assert (job.priority, job.visible_at) == (9, at)
        assert job.payload == {
            "target": "warehouse:raw.orders",
            "full_refresh": True,
            "allow_removal": True,
        }
        assert "to run at" in found["said"]
        assert desk.run("job", "cancel", found["job"]).code == DONE
    (late,) = desk.run("run", "orders", "--queue", "--json", "--delay", "10 min").document
    job = desk.get(UUID(late["job"]))
    assert job.visible_at is not None
    assert job.visible_at - job.submitted_at == timedelta(minutes=10)


def test_an_idempotency_key_gives_the_same_job_even_when_it_has_ended(desk: Desk) -> None:
    def submit(*arguments: str) -> list[dict[str, str]]:
        found = desk.run("run", *arguments, "--queue", "--json", "--idempotency-key", "monday")
        return list(found.document)

    (first,) = submit("orders")
    desk.finish(desk.claim(UUID(first["job"])))
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
    for name, code, words in (
        ("bad", USAGE, "cursor nope does not exist"),
        ("nowhere", FAILED, "table public.ordres does not exist"),
    ):
        alone = desk.run("run", name, "--queue")
        assert (alone.code, words in alone.err) == (code, True), alone
    assert desk.counts() == before
    both = desk.run("run", "bad", "orders", "--queue")
    assert both.code == USAGE
    assert "orders: queued as job" in both.out
    assert desk.counts()["jobs"] == 1


REFUSALS = {
    "run ordres --queue": "there is no sync ordres",
    "run --queue": "which sync?",
    "run orders --queue --max-batches 1": "--max-batches cannot be given with",
    "run orders --queue --concurrency 1": "--concurrency cannot be given with",
    "run orders --queue --take-over": "--take-over cannot be given with",
    "run orders --follow": "--follow is for queued jobs",
    "run orders --priority 1": "--priority is for queued jobs",
    "run orders --at 2999-01-01": "--at is for queued jobs",
    "run orders --delay 1s": "--delay is for queued jobs",
    "run orders --idempotency-key k": "--idempotency-key is for queued jobs",
    "run orders --queue --priority 1001": "--priority",
    "run orders --queue --at tomorrow": "is not a time",
    "run orders --queue --at 2020-01-01": "is in the past",
    "run orders --queue --delay soon": "is not a duration",
    "run orders --queue --delay -5": "is not a duration",
    "run orders --queue --at 2999-01-01 --delay 1s": "were both given",
    "run orders --queue --idempotency-key ": "idempotency key is empty",
    "verify orders --allow-removal": "--allow-removal is for",
    "backfill orders --from 1 --to 2 --allow-removal": "--allow-removal is for",
    "worker --kinds nonsense": "'nonsense' does not exist",
    "worker --kinds sync,nonsense": "noop, sync, task, vacuum",
    "worker --kinds publish": "'publish' cannot be queued",
    "worker --concurrency 0": "greater than or equal",
    "worker --concurrency many": "--concurrency",
    "worker --once --burst": "--once and --burst were both given",
}


def test_what_makes_no_sense_is_refused_and_nothing_changes(desk: Desk) -> None:
    before = desk.counts()
    for words, said in REFUSALS.items():
        done = desk.run(*words.split(" "))
        assert done.code == USAGE, done.said
        assert said in " ".join(done.err.split()), words
    for options, said in (
        ({"priority": 5000}, "priority 5000 is out of range"),
        ({"at": datetime(2999, 1, 1)}, "has no time zone"),
        ({"delay": "soon"}, "delay = 'soon'"),
    ):
        with pytest.raises(UsageError, match=said):
            desk.project.submit("orders", **options)
    with pytest.raises(UsageError, match="there is no sync nothing"):
        desk.project.submit("nothing")
    with pytest.raises(UsageError, match="'nonsense' does not exist"):
        desk.project.worker(kinds=["nonsense"])
    with pytest.raises(UsageError, match="concurrency of 0"):
        desk.project.worker(concurrency=0)
    with pytest.raises(UsageError, match="both given"):
        desk.project.worker(once=True, burst=True)
    assert desk.counts() == before
    for lease in ("-5s", "0s", "soon"):
        file = desk.place.folder / "tidegate.toml"
        text = file.read_text()
        try:
            file.write_text(text.replace("[worker]", f'[worker]\nlease = "{lease}"'))
            with pytest.raises(SettingsError, match=r"worker\.lease"):
                Project.open(desk.place.folder)
        finally:
            file.write_text(text)


def test_draining_refuses_new_jobs_and_works_off_old_ones(desk: Desk) -> None:
    waiting = desk.submit("customers")
    orders = desk.submit()
    desk.claim(orders)
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
    claims = [desk.claim(waiting)]
    assert desk.run("drain", "status", "--json").document["running"] == 2
    assert "draining since" in desk.run("job", "list").out
    assert desk.finish(claims[0])
    desk.run("job", "cancel", str(orders))
    assert "it is drained" in desk.run("drain", "status").out
    off = desk.run("drain", "off")
    assert (off.code, off.out.splitlines()[0]) == (DONE, "new jobs are taken in")
    assert desk.run("drain", "off", "--json").document["changed"] is False
    assert desk.run("run", "customers", "--queue").code == DONE


def test_a_project_that_never_ran_does_not_drain_and_gets_no_control_plane(
    make_place: MakePlace,
) -> None:
    with make_place(ORDERS, databases=3, installed=False).open() as project:
        assert read_draining(project.context).draining is None
        assert stop_draining(project.context)[1] is False
        with project.connect("control") as connection:
            assert project.context.plane.version(connection) == 0


def test_submit_gives_a_handle_that_waits_for_the_end(desk: Desk) -> None:
    queued = desk.project.submit("orders", priority=3, delay=0.0)
    assert queued.created
    assert desk.get(queued.job_id).priority == 3
    again = desk.project.submit("orders")
    assert (again.job_id, again.created, again.state()) == (queued.job_id, False, "waiting")
    with pytest.raises(BusyError, match=r"is still pending after 0\.1 seconds"):
        queued.wait(timeout=0.1)
    claim = desk.claim(queued.job_id)
    ending = Thread(target=desk.finish, args=(claim, JobStatus.FAILED, "it broke"))
    ending.start()
    ended = queued.wait(timeout=30)
    ending.join()
    assert (ended.status, ended.error) == (JobStatus.FAILED, "it broke")


# Jobs that cannot be right: a clear error, once, and the worker lives on


def write_job(desk: Desk, kind: str, name: str, payload: Any) -> UUID:
    """A job that nobody checked, as somebody's own SQL may have left it."""
    job_id = uuid4()
    with desk.session.transaction():
        desk.execute(
            "INSERT INTO jobs (job_id, project, kind, name, resource, payload, max_attempts,"
            " submitted_by, lock_at) VALUES (%s, 'shop', %s, %s, %s, %s, 5, 'by hand', 'claim')",
            *(job_id, kind, name, f"table {job_id}", json.dumps(payload)),
        )
        desk.execute(
            "INSERT INTO job_queue (job_id, project, kind, visible_at, lock_resource)"
            " VALUES (%s, 'shop', %s, now(), %s)",
            *(job_id, kind, f"table {job_id}"),
        )
    return job_id


GOOD = {"target": "warehouse:raw.orders", "full_refresh": False}
MALFORMED: list[tuple[str, str, Any, str]] = [
    ("sync", "orders", {}, "the job orders is malformed: its payload holds no target"),
    ("sync", "orders", {"target": 7}, "holds no target"),
    ("sync", "orders", ["warehouse:raw.orders"], "holds no target"),
    ("vacuum", "orders", None, "holds no target"),
    ("sync", "orders", {"target": "raw"}, "was submitted for raw"),
    (
        "sync",
        "orders",
        {**GOOD, "full_refresh": "yes"},
        "full_refresh in its payload is 'yes', not true or false",
    ),
    ("sync", "orders", {**GOOD, "max_batches": 0}, "max_batches in its payload is 0"),
    (
        "sync",
        "orders",
        {"target": "moon:raw.orders"},
        "sync orders loads into warehouse:raw.orders now; the job was submitted for moon:raw",
    ),
    ("sync", "ordres", GOOD, "there is no sync ordres"),
    ("vacuum", "gone", GOOD, "there is no sync gone"),
]


def test_a_malformed_job_fails_once_with_its_reason_and_the_worker_lives_on(desk: Desk) -> None:
    jobs = [write_job(desk, *one[:3]) for one in MALFORMED]
    after = write_job(desk, "noop", "after", {})
    with desk.place.open() as project:
        tally = project.worker(burst=True, concurrency=2).run()
    assert (tally.done, tally.failed, tally.retried) == (1, len(MALFORMED), 0)
    for job_id, (*_, reason) in zip(jobs, MALFORMED, strict=True):
        found = desk.get(job_id)
        assert (found.status, found.attempt_count) == ("failed", 1), reason
        assert reason in (found.error or "")
    assert desk.status(after) == "done"
    assert (desk.counts()["table_locks"], desk.counts()["job_queue"]) == (0, 0)
    assert desk.place.target.value("SELECT to_regclass('raw.orders')") is None


def test_a_malformed_job_whose_worker_died_is_swept_and_can_be_cancelled(desk: Desk) -> None:
    """Nobody can have published for it, so there is no fence to wait for."""
    payloads: list[Any] = [{}, {"target": 7}, ["list"], {"target": "raw"}]
    swept, cancelled = (
        [write_job(desk, "sync", "orders", payload) for payload in payloads] for _ in range(2)
    )
    desk.execute(
        "UPDATE job_queue SET claimed_at = now(), claimed_by = 'gone', attempt_id = job_id::text,"
        " fence = 1, lease_until = now() + interval '1 minute'"
    )
    desk.execute("UPDATE jobs SET status = 'running', attempt_id = job_id::text")
    for job_id in cancelled:
        answer = cancel_job(desk.project.context, desk.control, job_id, actor="test")
        assert answer.status == "cancelled"
    assert desk.project.sweeper("test").run_once(desk.control).reclaimed == len(swept)
    assert {desk.status(one) for one in cancelled} == {"cancelled"}
    assert {desk.status(one) for one in swept} == {"pending"}
