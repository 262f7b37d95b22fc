"""`tidegate history`: what ran, in 80 columns, and what takes longer than it used to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.commands import DONE, USAGE
from integration.conftest import MakePlace
from integration.orders import ORDERS
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.control.task_months import TaskMonths
from tidegate.control.task_records import TaskRecords
from tidegate.model.job import VACUUM, JobStatus

ERROR = "relation raw.orders has a column that nobody knows of, and there is no way around it\n  x"


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS)) as opened:
        TaskMonths(opened.plane).make(opened.control, datetime.now(UTC))
        yield opened


def record(desk: Desk, status: JobStatus = JobStatus.DONE, **options: Any) -> str:
    """An attempt that ended like this, in the history; returns its id."""
    job_id = desk.submit(options.pop("name", "orders"), **options)
    claim = desk.claim(job_id)
    desk.load(claim, "u", rows=1_234_567)
    error = ERROR if status is JobStatus.FAILED else None
    desk.jobs.finish(desk.control, claim, status, actor="t", error=error, result={"rows": 12_345})
    TaskRecords(desk.plane).write(
        desk.control, [claim.attempt_id], traceback="Traceback: here" if error else None
    )
    row = desk.control.execute(
        "SELECT id FROM tidegate_control.tasks WHERE attempt_id = %s", (claim.attempt_id,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def lengthen(desk: Desk, task_id: str, seconds: float) -> None:
    desk.control.execute(
        "UPDATE tidegate_control.tasks SET finished_at = started_at + %s WHERE id = %s",
        (timedelta(seconds=seconds), task_id),
    )


def ids(desk: Desk, *arguments: str) -> list[str]:
    return [one["id"] for one in desk.run("history", *arguments, "--json").document["runs"]]


def test_the_list_fits_eighty_columns_and_says_what_went_wrong(desk: Desk) -> None:
    record(desk, name="customers_of_the_shop_with_a_very_long_name_that_goes_on_and_on")
    failed = record(desk, JobStatus.FAILED)
    done = desk.run("history")
    assert done.code == DONE
    assert all(len(line) <= 80 for line in done.out.splitlines()), done.out
    _, first, error, second = done.out.splitlines()
    assert failed.startswith(first.split()[0])
    assert "failed" in first
    assert first.endswith("orders")
    assert error.startswith("  relation raw.orders has a column")
    assert error.endswith("…")
    assert "12,345  customers_of_the_shop" in second


def test_runs_are_found_by_name_parameter_time_status_and_kind(desk: Desk) -> None:
    orders = record(desk, payload={"target": "warehouse:raw.orders", "full_refresh": True})
    broken = record(desk, JobStatus.FAILED)
    customers = record(desk, name="customers")
    vacuum = record(desk, kind=VACUUM)
    assert ids(desk) == [vacuum, customers, broken, orders]
    assert ids(desk, "orders") == [vacuum, broken, orders]
    assert ids(desk, "orders", "--kind", "sync") == [broken, orders]
    assert ids(desk, "--param", "full_refresh=true") == [orders]
    assert ids(desk, "--param", "full_refresh=false", "--param", "target=warehouse:raw.orders") == [
        vacuum,
        broken,
    ]
    assert ids(desk, "orders", "--param", "full_refresh=false") == [vacuum, broken]
    assert ids(desk, "--status", "failed") == [broken]
    assert ids(desk, "--status", "failed", "--status", "done", "--limit", "2") == [
        vacuum,
        customers,
    ]
    assert ids(desk, "--since", "1h") == ids(desk)
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
    assert ids(desk, "--since", tomorrow) == []
    assert desk.run("history", "nobody").out == "no such runs\n"


def test_one_run_is_shown_with_all_that_is_known(desk: Desk) -> None:
    task_id = record(desk, JobStatus.FAILED)
    job_id = desk.run("history", "--json").document["runs"][0]["job_id"]
    for text in (task_id, task_id[:18], job_id):
        out = desk.run("history", "--id", text).out
        assert out.startswith(f"run {task_id}: sync orders, failed\n")
        for words in (
            f"job:       {job_id}, attempt 1",
            "given:     full_refresh=false, target=warehouse:raw.orders",
            "progress: load ",
            "traceback:\n  Traceback: here",
            "error:\n  relation raw.orders",
        ):
            assert words in out
    document = desk.run("history", "--id", task_id, "--json").document
    assert document["traceback"] == "Traceback: here"
    assert [one["event"] for one in document["events"]] == [
        "pending",
        "started",
        "progress",
        "failed",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--param", "day"], "--param 'day' has no value"),
        (["--since", "yesterday"], "--since 'yesterday' is no time"),
        (["--id", "xyz"], "'xyz' is not the id"),
        (["--id", "00000000-0000-7000-8000-000000000000"], "there is no run 00000000"),
        (["orders", "--id", "0"], "--id was given beside other conditions"),
        (["--status", "broken"], "broken"),
    ],
)
def test_what_cannot_be_asked_is_refused(desk: Desk, arguments: list[str], words: str) -> None:
    done = desk.run("history", *arguments)
    assert done.code == USAGE
    assert words in done.err


def test_a_project_where_nothing_ever_ran_has_no_history(make_place: MakePlace) -> None:
    project = make_place(ORDERS, databases=3).open()
    assert list(project.history.find_all_runs()) == []
    assert project.history.trends() == []


def test_trends_fit_eighty_columns_and_name_what_is_slower_than_usual(desk: Desk) -> None:
    for number in range(20):
        lengthen(desk, record(desk), 1.0 + number % 3 / 10)
        lengthen(desk, record(desk, name="customers"), 100 + number)
    for _ in range(2):
        record(desk, JobStatus.FAILED)
    lengthen(desk, record(desk, kind=VACUUM, name="a_rather_long_name_of_a_sync"), 0.05)
    lengthen(desk, record(desk), 4000.0)
    done = desk.run("history", "trends")
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
    (one,) = desk.run("history", "trends", "orders", "--json").document["trends"]
    assert one["slower_than_usual"] is True
    assert one["failures_a_week"] == [0, 0, 0, 0, 0, 0, 0, 2]


def test_a_task_called_trends_is_listed_when_one_says_list(desk: Desk) -> None:
    task_id = record(desk, name="trends")
    assert ids(desk, "list", "trends") == [task_id]
