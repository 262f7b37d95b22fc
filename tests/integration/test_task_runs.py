"""Tasks with side effects: run after what they require, skipped when complete, marked once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acceptance.processes import until
from integration.commands import DONE, FAILED, USAGE, Done
from integration.commands import tidegate as command
from integration.conftest import MakePlace, Place
from integration.orders import CREATE, FILL, ORDERS
from integration.without_spark import open_without_spark
from tidegate.errors import TaskFailed
from tidegate.project import Project

# Each call of a task leaves a line, so that a second one shows.
PIPELINES = """
from datetime import date
from pathlib import Path
import tidegate as tg

HERE = Path(__file__).parent

def note(text):
    with (HERE / "calls").open("a") as calls:
        calls.write(text + "\\n")

def is_there(ctx, day: date):
    note(f"asked {day}")
    return (HERE / f"export-{day}").exists()

@tg.task
def prepare(ctx, day: date):
    note(f"prepare {day}")
    if (HERE / "broken").exists():
        raise ValueError("the disk is full")

@tg.task(requires=[prepare], complete=is_there)
def export(ctx, day: date):
    note(f"export {day}")
    ctx.progress(1, 2, "half")
    ctx.log.info("exporting")
    (HERE / f"export-{day}").touch()

@tg.task(requires=[export, prepare])
def mail(ctx, day: date, to: str = "all"):
    with ctx.connect("warehouse") as connection:
        note(f"mail {day} {to} {connection.execute('SELECT 1').fetchone()[0]}")

@tg.task
def other(ctx, day: date):
    note(f"other {day}")

@tg.task(requires=["orders"])
def after_orders(ctx):
    rows = ctx.connect("warehouse").execute("SELECT count(*) FROM raw.orders").fetchone()[0]
    note(f"after {rows}")

@tg.task(requires=[mail, other])
def whole(ctx, day: date): ...
"""
DAY = "2026-11-01"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(ORDERS, pipelines=PIPELINES, databases=2)


def calls(place: Place) -> list[str]:
    file = place.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def run(place: Place, *arguments: str) -> Done:
    return command(place.folder, "run", *arguments)


def markers(place: Place) -> list[tuple[Any, ...]]:
    return place.control.execute(
        "SELECT name, parameters->>'day' FROM tidegate_control.task_markers ORDER BY 1, 2"
    )


def jobs(place: Place) -> list[tuple[Any, ...]]:
    return place.control.execute(
        "SELECT name, status FROM tidegate_control.jobs ORDER BY submitted_at, job_id"
    )


def states(report: Any) -> dict[str, str]:
    return {str(end.step): end.state.value for end in report.ends}


def test_what_is_missing_runs_first_and_what_is_complete_is_skipped(place: Place) -> None:
    first = run(place, "mail", "--param", f"day={DAY}", "--param", "to=ops")
    assert first.code == DONE, first.err
    ran = [line for line in calls(place) if "asked" not in line]
    assert ran == [f"prepare {DAY}", f"export {DAY}", f"mail {DAY} ops 1"]
    lines = first.out.splitlines()
    assert lines[0].startswith(f"mail(day={DAY}, to=ops): done, ")
    assert lines[1].startswith(f"  export(day={DAY}): done, ")
    assert lines[2].startswith(f"    prepare(day={DAY}): done, ")
    assert lines[3].startswith(f"  prepare(day={DAY}): done, ")
    assert lines[-1].startswith("3 done; ")
    assert markers(place) == [("export", DAY), ("mail", DAY), ("prepare", DAY)]
    assert jobs(place) == [("prepare", "done"), ("export", "done"), ("mail", "done")]

    again = run(place, "mail", "--param", f"day={DAY}", "-p", "to=ops")
    assert again.code == DONE
    assert again.out.splitlines()[0] == f"mail(day={DAY}, to=ops): complete"
    assert again.out.splitlines()[-1].startswith("0 done, 1 complete before; ")
    assert [line for line in calls(place) if "asked" not in line] == ran
    assert len(jobs(place)) == 3


def test_other_parameters_are_another_run_that_shares_what_is_complete(place: Place) -> None:
    run(place, "mail", "--param", f"day={DAY}")
    found = run(place, "mail", "--param", f"day={DAY}", "--param", "to=me", "--json").document
    assert [(one["name"], one["status"]) for one in found] == [
        ("export", "complete"),
        ("prepare", "complete"),
        ("mail", "done"),
    ]
    assert found[2]["parameters"] == {"day": DAY, "to": "me"}
    assert found[2]["requires"] == [f"export(day={DAY})", f"prepare(day={DAY})"]
    assert found[2]["update_id"].startswith("shop.mail-g1-")


def test_a_failure_stops_what_requires_it_and_nothing_else(place: Place) -> None:
    (place.folder / "broken").touch()
    failed = run(place, "whole", "--param", f"day={DAY}")
    assert failed.code == FAILED
    assert sorted(calls(place)) == [f"asked {DAY}", f"other {DAY}", f"prepare {DAY}"]
    assert f"task prepare(day={DAY}) failed: ValueError: the disk is full" in failed.err
    assert f"requires prepare(day={DAY}), which failed" in failed.out
    assert failed.out.splitlines()[-1].startswith("1 done, 1 failed, 3 not run; ")
    assert sorted(jobs(place)) == [("other", "done"), ("prepare", "failed")]
    assert markers(place) == [("other", DAY)]

    (place.folder / "broken").unlink()
    mended = run(place, "whole", "--param", f"day={DAY}", "--json")
    assert mended.code == DONE, mended.err
    assert {one["name"]: one["status"] for one in mended.document} == {
        "prepare": "done",
        "export": "done",
        "mail": "done",
        "other": "complete",
        "whole": "done",
    }


def test_a_task_is_done_again_when_asked_to(place: Place) -> None:
    for arguments in ((), ("--again",)):
        assert run(place, "other", "-p", f"day={DAY}", *arguments).code == DONE
    assert calls(place) == [f"other {DAY}", f"other {DAY}"]
    assert markers(place) == [("other", DAY)]
    refused = run(place, "export", "-p", f"day={DAY}", "--again")
    assert refused.code == USAGE
    assert "complete when its complete function says so" in refused.err


def test_a_required_sync_is_run_before(place: Place) -> None:
    place.source.execute(*CREATE, FILL)
    project = open_without_spark(place)
    report = project.run_task("after_orders")
    assert states(report) == {"sync orders": "done", "after_orders()": "done"}
    assert calls(place) == ["after 10"]
    # Of a task that is complete nothing is done, not even the sync.
    assert states(project.run_task("after_orders")) == {"after_orders()": "complete"}


def test_a_sync_that_fails_stops_the_task(place: Place) -> None:
    report = open_without_spark(place).run_task("after_orders")
    assert states(report) == {"sync orders": "failed", "after_orders()": "blocked"}
    assert report.exit_code == report.failed[0].error.exit_code  # type: ignore[union-attr]
    assert calls(place) == []


def test_a_task_whose_effect_is_not_there_in_the_end_has_failed(make_place: MakePlace) -> None:
    place = make_place(
        pipelines="import tidegate as tg\n"
        "@tg.task(complete=lambda ctx: False)\ndef nothing(ctx): ...\n"
    )
    report = place.open().run_task("nothing")
    assert isinstance(report.failed[0].error, TaskFailed)
    assert "still says that it is not done" in report.failed[0].error.message
    assert markers(place) == []


def test_backfill_does_every_day_once_and_goes_on_where_it_stopped(place: Place) -> None:
    assert run(place, "other", "--param", "day=2026-11-02").code == DONE
    found = command(place.folder, "backfill", "other", "--from", "2026-11-01", "--to", "2026-11-04")
    assert found.code == DONE, found.err
    lines = found.out.splitlines()
    assert lines[1] == "other(day=2026-11-02): complete"
    assert lines[-1].startswith("3 done, 1 complete before; ")
    assert sorted(calls(place)) == [f"other 2026-11-0{n}" for n in (1, 2, 3, 4)]
    again = command(
        *(place.folder, "backfill", "other", "--from", "2026-11-01", "--to", "2026-11-05"),
        "--json",
    )
    assert [one["status"] for one in again.document] == ["complete"] * 4 + ["done"]
    assert len(calls(place)) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "mail"), "task mail needs a value for day (date)"),
        (("run", "mail", "--param", "day=soon"), "task mail: day = 'soon'"),
        (("run", "mail", "--param", "dya=1"), "task mail has no parameter 'dya'"),
        (("run", "mail", "--param", "day"), "--param 'day' has no value"),
        (("run", "mail", "-p", "day=1", "-p", "day=2"), "--param day was given twice"),
        (("run", "orders", "--param", "day=1"), "--param is for tasks, and orders is no task"),
        (("run", "mail", "-p", f"day={DAY}", "--full-refresh"), "--full-refresh is for syncs"),
        (("run", "maill", "-p", f"day={DAY}"), "--param is for tasks, and maill is no task"),
        (("backfill", "nope", "--from", DAY, "--to", DAY), "there is no task 'nope'"),
        (("backfill", "mail", "--from", "x", "--to", DAY), "--from 'x' is not a date"),
        (("backfill", "mail", "--from", DAY, "--to", "2026-10-01"), "is before --from"),
        (("backfill", "after_orders", "--from", DAY, "--to", DAY), "no parameter of type date"),
        (("backfill", "mail", "--from", DAY, "--to", DAY, "--over", "to"), "no date called 'to'"),
    ],
)
def test_what_is_typed_wrong_is_refused_and_nothing_runs(
    place: Place, arguments: tuple[str, ...], said: str
) -> None:
    found = command(place.folder, *arguments)
    assert found.code == USAGE
    assert said in found.err
    assert calls(place) == []


def test_a_worker_runs_a_queued_task_and_leaves_its_marker(place: Place) -> None:
    project = place.open()
    queued = project.submit_task("other", day=DAY)
    assert project.worker(burst=True).run().exit_code == 0
    assert queued.state() == "done"
    assert calls(place) == [f"other {DAY}"]
    assert markers(place) == [("other", DAY)]


KILLED = """
import sys
from tidegate.project import Project
report = Project.open(sys.argv[1]).run_task("whole", day=sys.argv[2])
sys.exit(report.exit_code)
"""


def run_killed(place: Place, point: str) -> int:
    environment = {**os.environ, "TIDEGATE_FAILPOINT": f"{point}=kill"}
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(place.folder), DAY],
        env=environment,
        capture_output=True,
        timeout=60,
    ).returncode


def wait_until_left(place: Place) -> None:
    """The server needs a moment to see that a killed run is gone."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tidegate%'"
    )
    until(lambda: place.control.value(query) == 0, "the sessions of a killed run to end")


@pytest.mark.parametrize(
    "point",
    [
        *("job.submitted", "job.claimed", "job.finishing", "publish.marked", "job.finished"),
        *("job.claimed@3", "publish.marked@4"),
    ],
)
def test_killed_anywhere_and_run_again_each_task_is_marked_once(place: Place, point: str) -> None:
    assert run_killed(place, point) == -signal.SIGKILL
    wait_until_left(place)
    before = markers(place)
    done = [name for name, status in jobs(place) if status == "done"]
    if point.startswith("publish.marked"):
        assert len(before) == int(point.partition("@")[2] or 1) - 1
    # The end of a job and its marker are one commit.
    assert sorted(name for name, _ in before) == sorted(done)
    again = run(place, "whole", "--param", f"day={DAY}", "--json")
    assert again.code == DONE, again.said
    assert [name for name, _ in markers(place)] == ["export", "mail", "other", "prepare", "whole"]
    skipped = [one["name"] for one in again.document if one["status"] == "complete"]
    assert set(skipped) <= {name for name, _ in before}
    assert place.control.value("SELECT count(*) FROM tidegate_control.job_queue") == 0
    assert place.control.value("SELECT count(*) FROM tidegate_control.table_locks") == 0


def test_the_progress_of_a_task_is_seen_at_its_job(place: Place) -> None:
    Project.open(place.folder).run_task("export", day=DAY)
    (found,) = place.control.execute(
        "SELECT progress FROM tidegate_control.jobs WHERE name = 'export'"
    )[0]
    assert (json.loads(found) if isinstance(found, str) else found) == {
        "done": 1,
        "total": 2,
        "note": "half",
    }


def test_a_declaration_that_could_never_run_is_refused_by_plan(
    make_place: MakePlace, tmp_path: Path
) -> None:
    place = make_place(
        ORDERS,
        pipelines="import tidegate as tg\n"
        "@tg.task(requires=['b'])\ndef a(ctx): ...\n@tg.task(requires=[a])\ndef b(ctx): ...\n",
    )
    found = command(place.folder, "plan")
    assert found.code == USAGE
    assert "in a circle: a → b → a" in found.err


def test_a_parameter_may_be_called_as_anything_of_ours(make_place: MakePlace) -> None:
    place = make_place(
        pipelines="import tidegate as tg\n"
        "@tg.task\ndef odd(ctx, name: str, task: int, event: str, run: bool = True):\n"
        "    ctx.log.info('odd', name=name)\n    assert (name, task, event) == ('a', 1, 'b')\n"
    )
    report = place.open().run_task("odd", name="a", task=1, event="b")
    assert report.exit_code == 0, report.failed


def test_plan_lists_the_tasks_beside_the_syncs(place: Place) -> None:
    place.source.execute(*CREATE, FILL)
    found = command(place.folder, "plan", "--json")
    assert found.code == DONE, found.err
    tasks = {one["task"]: one for one in found.document["tasks"]}
    assert list(tasks) == ["prepare", "export", "mail", "other", "after_orders", "whole"]
    assert tasks["mail"]["requires"] == ["export", "prepare"]
    assert tasks["after_orders"]["requires"] == ["sync orders"]
    assert tasks["export"]["complete"] == "its complete function"
    assert [one["sync"] for one in found.document["plans"]] == ["orders"]
    alone = command(place.folder, "plan", "mail")
    assert alone.out.splitlines() == [
        "mail",
        "  task       day (date), to (text, 'all' by default)",
        "  makes      a side effect",
        "  requires   export, prepare",
        "  complete   when a marker in the control database says so",
    ]
