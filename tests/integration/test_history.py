"""Every attempt is told to the history, whatever becomes of it, and `tidegate history` shows it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.commands import DONE, FAILED, USAGE
from integration.conftest import MakePlace, Place, without_spark
from integration.job_store import shared
from integration.orders import CREATE, FILL, ORDERS
from integration.queued import run_here
from integration.recorded import Bench, open_bench
from tidegate.jobs.attempt import LiveAttempt
from tidegate.jobs.cancel import cancel_job
from tidegate.jobs.history.record import RunStatus, moment_of
from tidegate.jobs.history.writer import TABLES, Month, TaskMonths, TaskRecords
from tidegate.jobs.job import NOTHING, VACUUM, JobStatus, LockAt
from tidegate.jobs.shutdown import release_job
from tidegate.jobs.sweeper import Sweeper

ERROR = "relation raw.orders has a column that nobody knows of, and there is no way around it\n  x"


@contextmanager
def open_filled(place: Place) -> Iterator[Bench]:
    place.source.execute(*CREATE, FILL)
    with open_bench(place) as made:
        yield made


opened, bench = shared(lambda places: open_filled(places(ORDERS)))


def succeed(attempt: LiveAttempt) -> dict[str, Any]:
    attempt.record("load", {"rows": 7, "batch": "(1, 2]"})
    return {"rows": 7, "bytes": 512, "loads": 1, "fingerprints": {"a": "b"}}


def break_down(_: LiveAttempt) -> dict[str, Any]:
    raise RuntimeError("the disk is full")


def counts(bench: Bench) -> list[int]:
    return [bench.value(f"SELECT count(*) FROM {table}") for table in TABLES]


def test_a_run_that_is_done_leaves_one_task_with_its_facts_events_and_parameters(
    bench: Bench,
) -> None:
    seen: list[Any] = []

    def look(attempt: LiveAttempt) -> dict[str, Any]:
        seen.extend(bench.tasks())
        return succeed(attempt)

    job_id = bench.work(look)
    (running,) = seen
    assert (running.status, running.finished_at, running.seconds) == (
        RunStatus.RUNNING,
        None,
        None,
    )
    (task,) = bench.tasks()
    assert (task.job_id, task.status, task.attempt) == (job_id, RunStatus.DONE, 1)
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


def test_a_failure_is_kept_with_its_traceback_and_a_retry_says_what_it_came_from(
    bench: Bench,
) -> None:
    with pytest.raises(RuntimeError, match="disk is full"):
        bench.work(break_down, retries=True, lock_at=LockAt.SUBMIT)
    bench.execute("UPDATE job_queue SET visible_at = now()")
    bench.work(succeed, lock_at=LockAt.SUBMIT)
    first, second = bench.tasks()
    assert (first.status, first.error) == (RunStatus.FAILED, "RuntimeError: the disk is full")
    assert first.traceback is not None
    assert "in break_down" in first.traceback
    assert first.traceback.endswith("RuntimeError: the disk is full\n")
    assert bench.events(first) == ["pending", "started", "failed", "retried"]
    _, listed = bench.project.history.find_all_runs()
    assert listed.traceback is None, "a list of many runs carries no tracebacks"
    assert (first.job_id, second.status) == (second.job_id, RunStatus.DONE)
    assert (first.attempt, second.attempt) == (1, 2)
    pending, *_ = bench.project.history.find_all_events(second.id)
    assert pending.at == first.finished_at, "it has waited since the first attempt ended"


def test_a_worker_tells_of_a_job_that_failed_before_its_work_began_and_of_no_idle_one(
    bench: Bench,
) -> None:
    bench.submit("nobody", max_attempts=1)
    bench.submit("x", kind=NOTHING, resource=None, payload={}, lock_at=LockAt.NEVER)
    bench.project.worker(burst=True).run()
    assert bench.value("SELECT status FROM jobs WHERE name = 'x'") == "done"
    (task,) = bench.tasks()
    assert (task.name, task.status) == ("nobody", RunStatus.FAILED)
    assert task.traceback is not None
    assert "nobody" in (task.error or "")


def test_what_is_cancelled_given_back_or_left_is_told_as_such(bench: Bench) -> None:
    context = bench.project.context

    def cancel(attempt: LiveAttempt) -> dict[str, Any]:
        with context.plane.connect() as control:
            cancel_job(context, control, attempt.claim.job_id, actor="a person")
        return {}

    def leave(attempt: LiveAttempt) -> dict[str, Any]:
        release_job(context, attempt.claim, actor="t", reason="Worker received SIGTERM")
        return {}

    for work, kind, status, last in (
        (cancel, "sync", RunStatus.CANCELLED, "cancelled"),
        (leave, "sync", RunStatus.GIVEN_BACK, "retried"),
        (leave, VACUUM, RunStatus.FAILED, "failed"),
    ):
        bench.clean()
        bench.work(work, kind=kind)
        (task,) = bench.tasks()
        assert task.status is status
        assert bench.events(task) == ["pending", "started", last]


def test_an_end_that_nobody_lived_to_tell_is_told_by_the_sweeper(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the process had died right after its job was done.
    monkeypatch.setattr("tidegate.jobs.attempt.record_end", lambda *_: None)
    bench.work(succeed)
    assert [one.status for one in bench.tasks()] == [RunStatus.RUNNING]
    Sweeper(bench.project.context, actor="sweeper", targets=list).run_once(bench.control)
    (task,) = bench.tasks()
    assert (task.status, task.rows) == (RunStatus.DONE, 7)
    assert bench.events(task) == ["pending", "started", "progress", "done"]


def test_a_sync_is_remembered_with_its_rows(bench: Bench) -> None:
    with bench.place.open() as opened:
        project = without_spark(opened)
        report = project.run("orders")
        (task,) = project.history.find_all_by_name("orders")
        assert (task.job_id, task.status) == (report.job_id, RunStatus.DONE)
        assert task.rows == report.rows > 0
        assert task.metrics is not None
        assert task.metrics["loads"] == len(report.loads)
        events = [one.event.value for one in project.history.find_all_events(task.id)]
        assert events == ["pending", "started", *["progress"] * len(report.loads), "done"]
        project.run("orders")
        assert [one.rows for one in project.history.find_all_by_name("orders")][1] == report.rows


# A history that cannot be written fails no job


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_gone_fails_no_job(
    bench: Bench, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    bench.execute(f"ALTER TABLE {table} RENAME TO gone")
    try:
        with caplog.at_level(logging.WARNING):
            assert bench.status(bench.work(succeed)) == "done"
            with pytest.raises(RuntimeError, match="disk is full"):
                bench.work(break_down)
    finally:
        bench.execute(f"ALTER TABLE gone RENAME TO {table}")
    assert "history_not_written" in caplog.text
    assert table in caplog.text


def test_a_table_that_is_locked_holds_no_job_up(bench: Bench) -> None:
    bench.work(succeed)
    with bench.plane.connect() as other, other.transaction():
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


def test_a_command_whose_history_is_dropped_does_its_work_all_the_same(
    make_place: MakePlace,
) -> None:
    place = make_place(pipelines=TASK, databases=2)
    assert run_here(place, "run", "note", "--param", "text=a").code == DONE
    for table in TABLES[::-1]:
        place.control.execute(f"DROP TABLE tidegate_control.{table}")
    done = run_here(place, "run", "note", "--param", "text=b")
    assert done.code == DONE, done.err
    broken = run_here(place, "run", "note", "--param", "text=c", "--param", "fails=true")
    assert broken.code == FAILED
    assert "the disk is full" in broken.said
    assert place.control.execute(
        "SELECT payload->'parameters'->>'text', status FROM tidegate_control.jobs ORDER BY 1"
    ) == [("a", "done"), ("b", "done"), ("c", "failed")]


def test_without_record_task_history_nothing_is_written(make_place: MakePlace) -> None:
    place = make_place(ORDERS, pipelines=TASK, history={"record_task_history": False})
    with open_bench(place) as bench:
        assert bench.run("run", "note", "--param", "text=a").code == DONE
        with pytest.raises(RuntimeError):
            bench.work(break_down)
        assert bench.value("SELECT count(*) FROM jobs") == 2
        assert counts(bench) == [0, 0, 0]
        assert bench.run("history").out == "no runs yet\n"
        assert bench.project.history.trends() == []


def test_months_are_made_ahead_and_dropped_when_they_are_old_enough(
    make_place: MakePlace,
) -> None:
    with open_bench(make_place(ORDERS, installed=False)) as bench:
        bench.work(succeed)
        months, now = TaskMonths(bench.plane), datetime(2027, 3, 15, tzinfo=UTC)

        def parts(table: str) -> list[str]:
            rows = bench.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits"
                f" WHERE inhparent = '{table}'::regclass ORDER BY 1"
            )
            return [row[0].rpartition(".")[2] for row in rows]

        this = Month.of(datetime.now(UTC))
        assert parts("tasks") == [this.partition("tasks"), this.next.partition("tasks")]
        assert months.make(bench.control, now) == 6
        assert months.make(bench.control, now) == 0
        assert months.drop(bench.control, now, timedelta(days=90).total_seconds()) >= 3
        for table in TABLES:
            kept = [Month.of_partition(name) for name in parts(table)]
            assert kept[-2:] == [Month(2027, 3), Month(2027, 4)]
            assert all(one is not None and one.end > now - timedelta(days=90) for one in kept)


# `tidegate history`: what ran, in 80 columns, and what takes longer than it used to


def record(bench: Bench, status: JobStatus = JobStatus.DONE, **options: Any) -> str:
    """An attempt that ended like this, in the history; returns its id."""
    claim = bench.claim(bench.submit(options.pop("name", "orders"), **options))
    bench.jobs.record_action(bench.control, claim, "load", {"rows": 1_234_567})
    error = ERROR if status is JobStatus.FAILED else None
    assert bench.finish(claim, status, error, result={"rows": 12_345})
    TaskRecords(bench.plane).write(
        bench.control, [claim.attempt_id], traceback="Traceback: here" if error else None
    )
    return str(bench.value("SELECT id FROM tasks WHERE attempt_id = %s", claim.attempt_id))


def lengthen(bench: Bench, task_id: str, seconds: float) -> None:
    bench.execute(
        "UPDATE tasks SET finished_at = started_at + %s WHERE id = %s",
        timedelta(seconds=seconds),
        task_id,
    )


def ids(bench: Bench, *arguments: str) -> list[str]:
    return [one["id"] for one in bench.run("history", *arguments, "--json").document["runs"]]


def test_the_list_fits_eighty_columns_and_one_run_is_shown_with_all_that_is_known(
    bench: Bench,
) -> None:
    record(bench, name="customers_of_the_shop_with_a_very_long_name_that_goes_on_and_on")
    failed = record(bench, JobStatus.FAILED)
    done = bench.run("history")
    assert done.code == DONE
    assert all(len(line) <= 80 for line in done.out.splitlines()), done.out
    _, first, error, second = done.out.splitlines()
    assert failed.startswith(first.split()[0])
    assert "failed" in first
    assert first.endswith("orders")
    assert error.startswith("  relation raw.orders has a column")
    assert error.endswith("…")
    assert "12,345  customers_of_the_shop" in second
    job_id = bench.run("history", "--json").document["runs"][0]["job_id"]
    for text in (failed, failed[:18], job_id):
        out = bench.run("history", "--id", text).out
        assert out.startswith(f"run {failed}: sync orders, failed\n")
        for words in (
            f"job:       {job_id}, attempt 1",
            "given:     full_refresh=false, target=warehouse:raw.orders",
            "progress: load ",
            "traceback:\n  Traceback: here",
            "error:\n  relation raw.orders",
        ):
            assert words in out
    document = bench.run("history", "--id", failed, "--json").document
    assert document["traceback"] == "Traceback: here"
    events = [one["event"] for one in document["events"]]
    assert events == ["pending", "started", "progress", "failed"]


def test_runs_are_found_by_name_parameter_time_status_and_kind(bench: Bench) -> None:
    orders = record(bench, payload={"target": "warehouse:raw.orders", "full_refresh": True})
    broken = record(bench, JobStatus.FAILED)
    trends = record(bench, name="trends")
    vacuum = record(bench, kind=VACUUM)
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    everything = [vacuum, trends, broken, orders]
    for words, wanted in (
        ("", everything),
        ("--since 1h", everything),
        (f"--since {tomorrow}", []),
        ("orders", [vacuum, broken, orders]),
        ("orders --kind sync", [broken, orders]),
        ("list trends", [trends]),
        ("--param full_refresh=true", [orders]),
        ("--param full_refresh=false --param target=warehouse:raw.orders", [vacuum, broken]),
        ("orders --param full_refresh=false", [vacuum, broken]),
        ("--status failed", [broken]),
        ("--status failed --status done --limit 2", [vacuum, trends]),
    ):
        assert ids(bench, *words.split()) == wanted, words
    assert bench.run("history", "nobody").out == "no such runs\n"
    for words, said in (
        ("--param day", "--param 'day' has no value"),
        ("--since yesterday", "--since 'yesterday' is no time"),
        ("--id xyz", "'xyz' is not the id"),
        ("--id 00000000-0000-7000-8000-000000000000", "there is no run 00000000"),
        ("orders --id 0", "--id was given beside other conditions"),
        ("--status broken", "broken"),
    ):
        done = bench.run("history", *words.split())
        assert (done.code, said in done.err) == (USAGE, True), words


def test_trends_fit_eighty_columns_and_name_what_is_slower_than_usual(bench: Bench) -> None:
    for number in range(20):
        lengthen(bench, record(bench), 1.0 + number % 3 / 10)
        lengthen(bench, record(bench, name="customers"), 100 + number)
    for _ in range(2):
        record(bench, JobStatus.FAILED)
    lengthen(bench, record(bench, kind=VACUUM, name="a_rather_long_name_of_a_sync"), 0.05)
    lengthen(bench, record(bench), 4000.0)
    done = bench.run("history", "trends")
    assert done.code == DONE
    lines = done.out.splitlines()
    assert all(len(line) <= 80 for line in lines), done.out
    assert lines[0].split() == ["what", "runs", "p50", "p95", "p99", "last", "failed", "trend"]
    rows = {line.split()[0]: line for line in lines[1:5]}
    assert rows["orders"].split()[:2] == ["orders", "21"]
    assert "1h07m" in rows["orders"]
    assert rows["orders"].split()[-2] == "2"
    assert rows["orders"].endswith("█")
    assert rows["vacuum"] == "vacuum a_rather_long_name_of_a_sync"
    assert lines[6:] == ["orders is slower than usual: 1h07m, usually 1.1 s"]
    (one,) = bench.run("history", "trends", "orders", "--json").document["trends"]
    assert one["slower_than_usual"] is True
    assert one["failures_a_week"] == [0, 0, 0, 0, 0, 0, 0, 2]
