"""Every attempt is told to the history, whatever becomes of it, and none fails because of that."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.commands import DONE, FAILED
from integration.commands import tidegate as command
from integration.conftest import MakePlace, MakeProject
from integration.orders import CREATE, FILL, ORDERS
from integration.recorded import Bench, open_bench
from tidegate.control.task_months import TABLES, TaskMonths
from tidegate.model.job import NOTHING, VACUUM, LockAt
from tidegate.model.month import Month
from tidegate.model.task_history import TaskStatus, moment_of
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.cancel import cancel_job
from tidegate.runtime.leaving import leave_job
from tidegate.runtime.sweeper import Sweeper


@pytest.fixture
def bench(make_place: MakePlace) -> Iterator[Bench]:
    with open_bench(make_place(ORDERS)) as opened:
        yield opened


def succeed(attempt: LiveAttempt) -> dict[str, Any]:
    attempt.record("load", {"rows": 7, "batch": "(1, 2]"})
    return {"rows": 7, "bytes": 512, "loads": 1, "fingerprints": {"a": "b"}}


def break_down(_: LiveAttempt) -> dict[str, Any]:
    raise RuntimeError("the disk is full")


def test_a_run_that_is_done_leaves_one_task_with_its_facts_events_and_parameters(
    bench: Bench,
) -> None:
    job_id = bench.work(succeed)
    (task,) = bench.tasks()
    assert (task.job_id, task.status, task.attempt) == (job_id, TaskStatus.DONE, 1)
    assert (task.project, task.kind, task.name) == ("shop", "sync", "orders")
    assert (task.rows, task.bytes) == (7, 512)
    assert task.metrics == {"rows": 7, "bytes": 512, "loads": 1}
    assert (task.error, task.traceback) == (None, None)
    assert task.host == socket.gethostname()
    assert task.worker_id.startswith(f"{task.host}-")
    assert task.parameters == {"target": "warehouse:raw.orders", "full_refresh": False}
    assert moment_of(task.id) == task.recorded_at
    assert task.started_at - task.recorded_at < timedelta(milliseconds=1)
    assert task.finished_at is not None
    assert task.submitted_at <= task.started_at < task.finished_at
    assert bench.events(task) == ["pending", "started", "progress", "done"]
    told = bench.project.history.find_all_events(task.id)
    assert told[2].detail == {"action": "load", "rows": 7, "batch": "(1, 2]"}
    assert (told[0].at, told[-1].at) == (task.submitted_at, task.finished_at)


def test_a_task_is_there_as_soon_as_it_runs(bench: Bench) -> None:
    seen: list[Any] = []

    def look(_: LiveAttempt) -> dict[str, Any]:
        seen.extend(bench.tasks())
        return {}

    bench.work(look)
    (task,) = seen
    assert (task.status, task.finished_at, task.seconds) == (TaskStatus.RUNNING, None, None)
    assert bench.events(task) == ["pending", "started", "done"]


def test_a_failure_is_kept_with_its_error_and_traceback(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="disk is full"):
        bench.work(break_down)
    (task,) = bench.tasks()
    assert (task.status, task.error) == (TaskStatus.FAILED, "RuntimeError: the disk is full")
    assert task.traceback is not None
    assert "in break_down" in task.traceback
    assert task.traceback.endswith("RuntimeError: the disk is full\n")
    assert bench.events(task) == ["pending", "started", "failed"]
    (listed,) = bench.project.history.find_all_runs()
    assert listed.traceback is None, "a list of many runs carries no tracebacks"


def test_every_attempt_is_kept_and_a_retry_says_what_it_came_from(bench: Bench) -> None:
    with pytest.raises(RuntimeError):
        bench.work(break_down, retries=True, lock_at=LockAt.SUBMIT)
    bench.place.control.execute("UPDATE tidegate_control.job_queue SET visible_at = now()")
    bench.work(succeed, lock_at=LockAt.SUBMIT)
    first, second = bench.tasks()
    assert first.job_id == second.job_id
    assert (first.status, second.status) == (TaskStatus.FAILED, TaskStatus.DONE)
    assert (first.attempt, second.attempt) == (1, 2)
    assert bench.events(first) == ["pending", "started", "failed", "retried"]
    pending, *_ = bench.project.history.find_all_events(second.id)
    assert pending.at == first.finished_at, "it has waited since the first attempt ended"


def test_a_worker_tells_of_a_job_that_failed_before_its_work_began(bench: Bench) -> None:
    bench.submit(bench.request("nobody", max_attempts=1))
    bench.project.worker(burst=True).run()
    (task,) = bench.tasks()
    assert (task.name, task.status) == ("nobody", TaskStatus.FAILED)
    assert task.traceback is not None
    assert "nobody" in (task.error or "")


def test_a_job_that_does_nothing_leaves_no_trace(bench: Bench) -> None:
    bench.submit(bench.request("x", kind=NOTHING, resource=None, payload={}, lock_at=LockAt.NEVER))
    bench.project.worker(burst=True).run()
    assert bench.place.control.value("SELECT status FROM tidegate_control.jobs") == "done"
    assert bench.tasks() == []


def test_a_cancelled_run_is_told_as_such(bench: Bench) -> None:
    def cancel(attempt: LiveAttempt) -> dict[str, Any]:
        context = bench.project.context
        with context.plane.connect() as control:
            cancel_job(context, control, attempt.claim.job_id, actor="a person")
        return {}

    bench.work(cancel)
    (task,) = bench.tasks()
    assert task.status is TaskStatus.CANCELLED
    assert bench.events(task) == ["pending", "started", "cancelled"]


@pytest.mark.parametrize(
    ("kind", "status", "events"),
    [
        ("sync", TaskStatus.GIVEN_BACK, ["pending", "started", "retried"]),
        (VACUUM, TaskStatus.FAILED, ["pending", "started", "failed"]),
    ],
)
def test_what_a_leaving_process_gives_back_or_ends_is_told(
    bench: Bench, kind: str, status: TaskStatus, events: list[str]
) -> None:
    def leave(attempt: LiveAttempt) -> dict[str, Any]:
        context = bench.project.context
        leave_job(context, attempt.claim, actor="t", reason="Worker received SIGTERM")
        return {}

    bench.work(leave, kind=kind)
    (task,) = bench.tasks()
    assert task.status is status
    assert bench.events(task) == events


def test_an_end_that_nobody_lived_to_tell_is_told_by_the_sweeper(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the process had died right after its job was done.
    monkeypatch.setattr("tidegate.runtime.working.record_end", lambda *_: None)
    bench.work(succeed)
    assert [one.status for one in bench.tasks()] == [TaskStatus.RUNNING]
    sweeper = Sweeper(bench.project.context, actor="sweeper", targets=list)
    with bench.project.context.plane.connect() as control:
        sweeper.run_once(control)
    (task,) = bench.tasks()
    assert (task.status, task.rows) == (TaskStatus.DONE, 7)
    assert bench.events(task) == ["pending", "started", "progress", "done"]


def test_without_record_task_history_nothing_is_written(make_place: MakePlace) -> None:
    place = make_place(ORDERS, history={"record_task_history": False})
    with open_bench(place) as bench:
        bench.work(succeed)
        with pytest.raises(RuntimeError):
            bench.work(break_down)
        assert [bench.count(table) for table in TABLES] == [0, 0, 0]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_gone_fails_no_job(
    bench: Bench, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    bench.place.control.execute(f"ALTER TABLE tidegate_control.{table} RENAME TO gone")
    with caplog.at_level(logging.WARNING):
        assert bench.status(bench.work(succeed)) == "done"
        with pytest.raises(RuntimeError, match="disk is full"):
            bench.work(break_down)
    assert "history_not_written" in caplog.text
    assert f"{table}" in caplog.text


def test_a_table_that_is_locked_holds_no_job_up(bench: Bench) -> None:
    bench.work(succeed)
    with bench.place.control.connect() as other, other.transaction():
        other.execute("LOCK TABLE tidegate_control.tasks IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        job_id = bench.work(succeed)
        assert time.monotonic() - began < 10
    assert bench.status(job_id) == "done"
    assert len(bench.tasks()) == 1


TASK = """
import tidegate as tg

@tg.task
def note(ctx, text: str, fails: bool = False):
    if fails:
        raise ValueError("the disk is full")
"""


@pytest.mark.parametrize("table", TABLES)
def test_a_process_whose_history_is_dropped_does_its_work_all_the_same(
    make_place: MakePlace, table: str
) -> None:
    place = make_place(pipelines=TASK, databases=2)
    assert command(place.folder, "run", "note", "--param", "text=a").code == DONE
    place.control.execute(f"DROP TABLE tidegate_control.{table}")
    done = command(place.folder, "run", "note", "--param", "text=b")
    assert done.code == DONE, done.err
    broken = command(place.folder, "run", "note", "--param", "text=c", "--param", "fails=true")
    assert broken.code == FAILED
    assert "the disk is full" in broken.out + broken.err
    assert place.control.execute(
        "SELECT payload->'parameters'->>'text', status FROM tidegate_control.jobs ORDER BY 1"
    ) == [("a", "done"), ("b", "done"), ("c", "failed")]


def test_a_process_with_record_task_history_off_leaves_nothing(make_place: MakePlace) -> None:
    place = make_place(pipelines=TASK, databases=2, history={"record_task_history": False})
    assert command(place.folder, "run", "note", "--param", "text=a").code == DONE
    assert place.control.value("SELECT count(*) FROM tidegate_control.jobs") == 1
    for table in TABLES:
        assert place.control.value(f"SELECT count(*) FROM tidegate_control.{table}") == 0
    assert command(place.folder, "history").out == "no runs yet\n"


def test_months_are_made_ahead_and_dropped_when_they_are_old_enough(bench: Bench) -> None:
    bench.work(succeed)
    months, now = TaskMonths(bench.project.context.plane), datetime(2027, 3, 15, tzinfo=UTC)

    def parts(table: str) -> list[str]:
        rows = bench.place.control.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            f" WHERE inhparent = 'tidegate_control.{table}'::regclass ORDER BY 1"
        )
        return [row[0].partition(".")[2] for row in rows]

    this = Month.of(datetime.now(UTC))
    assert parts("tasks") == [this.partition("tasks"), this.next.partition("tasks")]
    with bench.project.context.plane.connect() as control:
        assert months.make(control, now) == 6
        assert months.make(control, now) == 0
        assert months.drop(control, now, timedelta(days=90).total_seconds()) >= 3
    for table in TABLES:
        kept = [Month.of_partition(name) for name in parts(table)]
        assert kept[-2:] == [Month(2027, 3), Month(2027, 4)]
        assert all(one is not None and one.end > now - timedelta(days=90) for one in kept)


def test_a_sync_that_spark_has_moved_is_remembered_with_its_rows(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    report = project.run("orders")
    (task,) = project.history.find_all_by_name("orders")
    assert (task.job_id, task.status) == (report.job_id, TaskStatus.DONE)
    assert task.rows == report.rows > 0
    assert task.metrics is not None
    assert task.metrics["loads"] == len(report.loads)
    events = [one.event.value for one in project.history.find_all_events(task.id)]
    assert events == ["pending", "started", *["progress"] * len(report.loads), "done"]
    project.run("orders")
    assert [one.rows for one in project.history.find_all_by_name("orders")][1] == report.rows
