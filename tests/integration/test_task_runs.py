"""Tasks with side effects, here and in the queue: after what they require, marked once."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import Any

import pytest

from acceptance.processes import until
from integration import commands
from integration.commands import DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, Place, open_without_spark
from integration.here import tidegate
from integration.orders import CREATE, FILL, ORDERS
from tidegate.core.errors import TaskFailed, UsageError

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
    return (HERE / f"export-{day}").exists()

@tg.task(retries=0)
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

@tg.task(resources=["shop"], priority=5)
def other(ctx, day: date):
    note(f"other {day}")

@tg.task(requires=["orders"])
def after_orders(ctx):
    rows = ctx.connect("warehouse").execute("SELECT count(*) FROM raw.orders").fetchone()[0]
    note(f"after {rows}")

@tg.task(requires=[mail, other], schedule="30 23 * * *", timezone="America/New_York")
def whole(ctx, day: date):
    note(f"whole {day}")
"""
NAMES = ["export", "mail", "other", "prepare", "whole"]
DAY = "2026-11-01"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(ORDERS, pipelines=PIPELINES, databases=2, resources={"shop": 1})


def calls(place: Place) -> list[str]:
    file = place.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def run(place: Place, name: str, *arguments: str) -> Done:
    return tidegate(place.folder, "run", name, "--param", f"day={DAY}", *arguments)


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
    first = run(place, "mail", "--param", "to=ops")
    assert first.code == DONE, first.err
    ran = [f"prepare {DAY}", f"export {DAY}", f"mail {DAY} ops 1"]
    assert calls(place) == ran
    lines = first.out.splitlines()
    assert lines[0].startswith(f"mail(day={DAY}, to=ops): done, ")
    assert lines[1].startswith(f"  export(day={DAY}): done, ")
    assert lines[2].startswith(f"    prepare(day={DAY}): done, ")
    assert lines[3].startswith(f"  prepare(day={DAY}): done, ")
    assert lines[-1].startswith("3 done; ")
    assert markers(place) == [("export", DAY), ("mail", DAY), ("prepare", DAY)]
    assert jobs(place) == [("prepare", "done"), ("export", "done"), ("mail", "done")]
    assert place.control.value(
        "SELECT progress FROM tidegate_control.jobs WHERE name = 'export'"
    ) == {"done": 1, "total": 2, "note": "half"}

    again = run(place, "mail", "-p", "to=ops")
    assert again.code == DONE
    assert again.out.splitlines()[0] == f"mail(day={DAY}, to=ops): complete"
    assert again.out.splitlines()[-1].startswith("0 done, 1 complete before; ")
    assert calls(place) == ran
    assert len(jobs(place)) == 3

    # Other parameters are another run, which shares what is complete.
    found = run(place, "mail", "--param", "to=me", "--json").document
    assert [(one["name"], one["status"]) for one in found] == [
        ("export", "complete"),
        ("prepare", "complete"),
        ("mail", "done"),
    ]
    assert found[2]["parameters"] == {"day": DAY, "to": "me"}
    assert found[2]["requires"] == [f"export(day={DAY})", f"prepare(day={DAY})"]
    assert found[2]["update_id"].startswith("shop.mail-g1-")

    # It is done again when somebody asks for that.
    assert run(place, "prepare", "--again").code == DONE
    assert calls(place)[-1] == f"prepare {DAY}"
    assert markers(place).count(("prepare", DAY)) == 1
    refused = run(place, "export", "--again")
    assert refused.code == USAGE
    assert "complete when its complete function says so" in refused.err


def test_a_failure_stops_what_requires_it_and_nothing_else(place: Place) -> None:
    (place.folder / "broken").touch()
    failed = run(place, "whole")
    assert failed.code == FAILED
    assert sorted(calls(place)) == [f"other {DAY}", f"prepare {DAY}"]
    assert f"task prepare(day={DAY}) failed: ValueError: the disk is full" in failed.err
    assert f"requires prepare(day={DAY}), which failed" in failed.out
    assert failed.out.splitlines()[-1].startswith("1 done, 1 failed, 3 not run; ")
    assert sorted(jobs(place)) == [("other", "done"), ("prepare", "failed")]
    assert markers(place) == [("other", DAY)]

    (place.folder / "broken").unlink()
    mended = run(place, "whole", "--json")
    assert mended.code == DONE, mended.err
    assert {one["name"]: one["status"] for one in mended.document} == {
        "prepare": "done",
        "export": "done",
        "mail": "done",
        "other": "complete",
        "whole": "done",
    }


def test_a_required_sync_is_run_before_and_its_failure_stops_the_task(place: Place) -> None:
    project = open_without_spark(place)
    report = project.run_task("after_orders")
    assert states(report) == {"sync orders": "failed", "after_orders()": "blocked"}
    assert report.exit_code == report.failed[0].error.exit_code  # type: ignore[union-attr]
    assert calls(place) == []
    place.source.execute(*CREATE, FILL)
    report = project.run_task("after_orders")
    assert states(report) == {"sync orders": "done", "after_orders()": "done"}
    assert calls(place) == ["after 10"]
    # Of a task that is complete nothing is done, not even the sync.
    assert states(project.run_task("after_orders")) == {"after_orders()": "complete"}


def test_backfill_does_every_day_once_and_goes_on_where_it_stopped(place: Place) -> None:
    def backfill(last: str, *more: str) -> Done:
        dates = ("--from", "2026-11-01", "--to", last)
        done = tidegate(place.folder, "backfill", "other", *dates, *more)
        assert done.code == DONE, done.err
        return done

    place.open().run_task("other", day="2026-11-02")
    lines = backfill("2026-11-04").out.splitlines()
    assert lines[1] == "other(day=2026-11-02): complete"
    assert lines[-1].startswith("3 done, 1 complete before; ")
    assert sorted(calls(place)) == [f"other 2026-11-0{n}" for n in (1, 2, 3, 4)]
    again = backfill("2026-11-05", "--json").document
    assert [one["status"] for one in again] == ["complete"] * 4 + ["done"]
    assert len(calls(place)) == 5


TYPED_WRONG: list[tuple[tuple[str, ...], str]] = [
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
]


def test_what_is_typed_wrong_is_refused_and_nothing_runs(place: Place) -> None:
    for arguments, said in TYPED_WRONG:
        found = tidegate(place.folder, *arguments)
        assert found.code == USAGE, arguments
        assert said in found.err
    assert calls(place) == []
    assert jobs(place) == []


def test_plan_lists_the_tasks_beside_the_syncs(place: Place) -> None:
    place.source.execute(*CREATE, FILL)
    found = tidegate(place.folder, "plan", "--json")
    assert found.code == DONE, found.err
    tasks = {one["task"]: one for one in found.document["tasks"]}
    assert list(tasks) == ["prepare", "export", "mail", "other", "after_orders", "whole"]
    assert tasks["mail"]["requires"] == ["export", "prepare"]
    assert tasks["after_orders"]["requires"] == ["sync orders"]
    assert tasks["export"]["complete"] == "its complete function"
    assert [one["sync"] for one in found.document["plans"]] == ["orders"]
    assert tidegate(place.folder, "plan", "mail").out.splitlines() == [
        "mail",
        "  task       day (date), to (text, 'all' by default)",
        "  makes      a side effect",
        "  requires   export, prepare",
        "  complete   when a marker in the control database says so",
    ]


def test_what_the_function_of_a_task_can_do_wrong_and_call_its_parameters(
    make_place: MakePlace,
) -> None:
    place = make_place(
        pipelines="""
import tidegate as tg

@tg.task(complete=lambda ctx: False)
def nothing(ctx): ...

@tg.task
def odd(ctx, name: str, task: int, event: str, run: bool = True):
    ctx.log.info("odd", name=name)
    assert (name, task, event) == ("a", 1, "b")

@tg.task(retries=1, retry_delay="5 min")
def slow(ctx):
    raise ValueError("broken")
"""
    )
    project = place.open()
    report = project.run_task("nothing")
    assert isinstance(report.failed[0].error, TaskFailed)
    assert "still says that it is not done" in report.failed[0].error.message
    assert markers(place) == []
    assert project.run_task("odd", name="a", task=1, event="b").exit_code == 0

    # One that failed waits as long as it says.
    project.submit_task("slow")
    project.worker(once=True).run()
    assert jobs(place)[-1] == ("slow", "pending")
    wait = place.control.value(
        "SELECT extract(epoch FROM visible_at - now()) FROM tidegate_control.job_queue"
    )
    assert 240 < wait <= 300
    place.control.execute("UPDATE tidegate_control.job_queue SET visible_at = now()")
    project.worker(burst=True).run()
    assert jobs(place)[-1] == ("slow", "failed")


def work(place: Place) -> None:
    assert place.open().worker(burst=True, concurrency=2).run().exit_code == 0


def waiting(place: Place) -> int:
    return int(place.control.value("SELECT count(*) FROM tidegate_control.job_needs"))


def test_each_job_of_a_queued_graph_waits_for_those_it_requires(place: Place) -> None:
    found = run(place, "whole", "--queue", "--json")
    assert found.code == DONE, found.err
    steps = [one["step"].partition("(")[0] for one in found.document]
    assert sorted(steps) == NAMES
    assert [one for one in steps if one != "other"] == ["prepare", "export", "mail", "whole"]
    assert all(one["created"] for one in found.document)
    needed = waiting(place)
    assert needed == 5
    again = run(place, "whole", "--queue")
    assert f"whole(day={DAY}): not queued again: it is job" in again.out
    assert waiting(place) == needed
    work(place)
    done = [line.split()[0] for line in calls(place)]
    assert [one for one in done if one != "other"] == ["prepare", "export", "mail", "whole"]
    assert (len(done), done[-1], waiting(place)) == (5, "whole", 0)
    assert markers(place) == [(name, DAY) for name in NAMES]
    complete = run(place, "whole", "--queue")
    assert complete.out == "nothing was queued: all of it is complete\n"
    with pytest.raises(UsageError, match="is complete already"):
        place.open().submit_task("whole", day=DAY)


def test_what_is_behind_a_failure_in_the_queue_fails_with_its_name(place: Place) -> None:
    (place.folder / "broken").touch()
    place.open().submit_task("whole", day=DAY)
    place.open().worker(burst=True, concurrency=2).run()
    assert sorted(calls(place)) == [f"other {DAY}", f"prepare {DAY}"]
    failed = "SELECT error FROM tidegate_control.jobs WHERE status = 'failed' AND name = '{}'"
    assert "requires prepare, which failed" in place.control.value(failed.format("export"))
    assert {name for name, status in jobs(place) if status == "failed"} == {*NAMES} - {"other"}
    (place.folder / "broken").unlink()
    place.open().submit_task("whole", day=DAY)
    work(place)
    assert sorted(calls(place)[2:]) == [
        *(f"export {DAY}", f"mail {DAY} all 1", f"prepare {DAY}", f"whole {DAY}")
    ]


def test_a_tick_queues_the_graph_of_its_local_day_once_and_a_complete_one_not_at_all(
    place: Place,
) -> None:
    project = place.open()
    scheduler = project.scheduler("tester")

    def look(day: int, hour: int, minute: int) -> Any:
        with project.context.plane.connect() as control:
            return scheduler.run_once(control, datetime(2026, 11, day, hour, minute, tzinfo=UTC))

    project.run_task("whole", day="2026-11-11")
    look(12, 0, 0)
    # 23:30 in New York is 04:30 of the next day in UTC.
    assert look(12, 4, 30).complete == 1
    assert jobs(place)[5:] == []
    assert look(13, 4, 30).queued == 1
    assert look(13, 4, 30).queued == 0
    work(place)
    assert calls(place)[-1] == "whole 2026-11-12"
    assert len(calls(place)) == 10


def wait_until_left(place: Place) -> None:
    """The server needs a moment to see that a killed run is gone."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tidegate%'"
    )
    until(lambda: place.control.value(query) == 0, "the sessions of a killed run to end")


@pytest.mark.parametrize("point", ["job.claimed@3", "publish.marked@4"])
def test_killed_and_run_again_each_task_is_marked_once(place: Place, point: str) -> None:
    killed = commands.tidegate(
        *(place.folder, "run", "whole", "--param", f"day={DAY}"),
        environment={"TIDEGATE_FAILPOINT": f"{point}=kill"},
    )
    assert killed.code == -signal.SIGKILL
    wait_until_left(place)
    before = markers(place)
    done = [name for name, status in jobs(place) if status == "done"]
    if point == "publish.marked@4":
        assert len(before) == 3
    # The end of a job and its marker are one commit.
    assert sorted(name for name, _ in before) == sorted(done)
    again = run(place, "whole", "--json")
    assert again.code == DONE, again.said
    assert [name for name, _ in markers(place)] == NAMES
    skipped = [one["name"] for one in again.document if one["status"] == "complete"]
    assert set(skipped) <= {name for name, _ in before}
    assert place.control.value("SELECT count(*) FROM tidegate_control.job_queue") == 0
    assert place.control.value("SELECT count(*) FROM tidegate_control.table_locks") == 0
