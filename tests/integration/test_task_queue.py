"""A graph of tasks in the queue: each job waits for those it requires, whoever works them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from integration.commands import DONE, tidegate
from integration.conftest import MakePlace, Place
from tidegate.errors import UsageError
from tidegate.runtime.scheduler import Scheduler
from tidegate.runtime.worker import Worker

PIPELINES = """
from datetime import date
from pathlib import Path
import tidegate as tg

HERE = Path(__file__).parent

def note(text):
    with (HERE / "calls").open("a") as calls:
        calls.write(text + "\\n")
    if (HERE / f"broken-{text.split()[0]}").exists():
        raise ValueError("broken")

@tg.task(retries=0)
def first(ctx, day: date):
    note(f"first {day}")

@tg.task(requires=[first])
def second(ctx, day: date):
    note(f"second {day}")

@tg.task(requires=[first], resources=["shop"], priority=5)
def third(ctx, day: date):
    note(f"third {day}")

@tg.task(requires=[second, third], schedule="30 23 * * *", timezone="America/New_York")
def last(ctx, day: date):
    note(f"last {day}")
"""
DAY = "2026-11-01"


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(pipelines=PIPELINES, resources={"shop": 1})


def calls(place: Place) -> list[str]:
    file = place.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def jobs(place: Place) -> dict[str, tuple[str, str | None]]:
    rows = place.control.execute(
        "SELECT name, status, error FROM tidegate_control.jobs ORDER BY submitted_at"
    )
    return {name: (status, error) for name, status, error in rows}


def work(place: Place) -> Worker:
    worker = place.open().worker(burst=True, concurrency=2)
    worker.run()
    return worker


def waiting(place: Place) -> int:
    return int(place.control.value("SELECT count(*) FROM tidegate_control.job_needs"))


def test_each_job_of_a_graph_waits_for_those_it_requires(place: Place) -> None:
    found = tidegate(place.folder, "run", "last", "-p", f"day={DAY}", "--queue", "--json")
    assert found.code == DONE, found.err
    steps = [one["step"].partition("(")[0] for one in found.document]
    assert (steps[0], sorted(steps[1:3]), steps[3]) == ("first", ["second", "third"], "last")
    assert all(one["created"] for one in found.document)
    assert waiting(place) == 4
    again = tidegate(place.folder, "run", "last", "-p", f"day={DAY}", "--queue")
    assert f"last(day={DAY}): not queued again: it is job" in again.out
    assert waiting(place) == 4
    work(place)
    done = calls(place)
    assert (done[0], sorted(done[1:3]), done[3]) == (
        f"first {DAY}",
        [f"second {DAY}", f"third {DAY}"],
        f"last {DAY}",
    )
    assert waiting(place) == 0
    complete = tidegate(place.folder, "run", "last", "-p", f"day={DAY}", "--queue")
    assert complete.out == "nothing was queued: all of it is complete\n"
    with pytest.raises(UsageError, match="is complete already"):
        place.open().submit_task("last", day=DAY)


def test_what_is_behind_a_failure_fails_with_its_name(place: Place) -> None:
    (place.folder / "broken-first").touch()
    place.open().submit_task("last", day=DAY)
    work(place)
    assert calls(place) == [f"first {DAY}"]
    found = jobs(place)
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(
        ("first", "second", "third", "last"), "failed"
    )
    assert "requires first, which failed" in str(found["second"][1])
    (place.folder / "broken-first").unlink()
    place.open().submit_task("last", day=DAY)
    work(place)
    assert len(calls(place)) == 5


def look(place: Place, now: datetime) -> Any:
    project = place.open()
    scheduler: Scheduler = project.scheduler("tester")
    with project.context.plane.connect() as control:
        return scheduler.run_once(control, now)


def test_a_tick_queues_the_graph_of_its_local_day_once(place: Place) -> None:
    place.open().context.control_id()
    # 23:30 in New York is 03:30 of the next day in UTC.
    look(place, datetime(2026, 11, 12, 0, 0, tzinfo=UTC))
    tick = datetime(2026, 11, 12, 4, 30, tzinfo=UTC)
    assert look(place, tick).queued == 1
    assert look(place, tick).queued == 0
    work(place)
    assert calls(place)[-1] == "last 2026-11-11"
    assert len(calls(place)) == 4


def test_a_tick_of_a_task_that_is_complete_queues_nothing(place: Place) -> None:
    place.open().run_task("last", day="2026-11-11")
    look(place, datetime(2026, 11, 12, 0, 0, tzinfo=UTC))
    assert look(place, datetime(2026, 11, 12, 4, 30, tzinfo=UTC)).complete == 1
    work(place)
    assert len(calls(place)) == 4


def test_a_task_that_failed_waits_as_long_as_it_says(make_place: MakePlace) -> None:
    place = make_place(
        pipelines="""
import tidegate as tg

@tg.task(retries=1, retry_delay="5 min")
def slow(ctx):
    raise ValueError("broken")
"""
    )
    place.open().submit_task("slow")
    place.open().worker(once=True).run()
    assert jobs(place)["slow"][0] == "pending"
    wait = place.control.value(
        "SELECT extract(epoch FROM visible_at - now()) FROM tidegate_control.job_queue"
    )
    assert 240 < wait <= 300
    place.control.execute("UPDATE tidegate_control.job_queue SET visible_at = now()")
    work(place)
    assert jobs(place)["slow"][0] == "failed"
