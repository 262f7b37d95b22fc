"""Scheduler processes that are killed anywhere have forgotten nothing."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from acceptance.processes import Process, WarmProcess, until
from integration.conftest import MakePlace, Place
from tidegate.model.schedule import Schedule

MINUTELY = {
    "name": "orders",
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
    "schedule": "* * * * *",
    "catch_up": "all",
}
YEARLY = MINUTELY | {"schedule": "0 0 1 1 *"}
STARTED = "sees to 1 schedule"
numbers = count()


@contextmanager
def started(place: Place, *arguments: str, failpoint: str | None = None) -> Iterator[Process]:
    """A command in a process of its own, killed with all it started at the latest in the end."""
    armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
    command = ["tidegate", *arguments, "--project", str(place.folder)]
    process = WarmProcess(command, place.folder / f"process{next(numbers)}", armed)
    try:
        yield process
    finally:
        process.kill_all()


def look_back(place: Place, minutes: int) -> datetime:
    """As if no scheduler had been there for so long."""
    with place.open() as project:
        project.context.control_id()
        with project.context.plane.connect() as control:
            project.scheduler("test").run_once(control)
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=minutes)
    place.control.execute(
        "DELETE FROM tidegate_control.schedule_ticks",
        f"UPDATE tidegate_control.schedules SET seen_until = '{since.isoformat()}'",
    )
    return since


def ticks(place: Place) -> list[datetime]:
    rows = place.control.execute(
        "SELECT tick FROM tidegate_control.schedule_ticks ORDER BY noted_at, tick"
    )
    return [row[0].astimezone(UTC) for row in rows]


def seen_until(place: Place) -> datetime:
    found = place.control.value("SELECT seen_until FROM tidegate_control.schedules")
    assert isinstance(found, datetime)
    return found


@pytest.mark.parametrize("point", ["tick.queued", "tick.noted", "tick.committed", "tick.queued@5"])
def test_one_that_is_killed_between_any_two_steps_leaves_all_or_nothing(
    make_place: MakePlace, point: str
) -> None:
    place = make_place(MINUTELY)
    since = look_back(place, 10)
    with started(place, "scheduler", failpoint=f"{point}=kill") as process:
        assert process.wait().code == -signal.SIGKILL
    left = ticks(place)
    jobs = place.control.value("SELECT count(*) FROM tidegate_control.jobs")
    if point == "tick.committed":
        assert (len(left), jobs) == (10, 1)
    else:
        assert (left, jobs, seen_until(place)) == ([], 0, since)
    with started(place, "scheduler", "--once") as process:
        assert process.wait().code == 0
    assert ticks(place) == Schedule("* * * * *").between(since, seen_until(place))
    assert place.control.execute(
        "SELECT count(*) FROM tidegate_control.jobs",
    ) == [(1,)]


def test_schedulers_that_are_killed_again_and_again_queue_every_tick_once(
    make_place: MakePlace,
) -> None:
    place = make_place(MINUTELY, scheduler={"poll": "20ms"})
    since = look_back(place, 60 * 24)
    chance = random.Random(9)
    with ExitStack() as stack:
        for _ in range(4):
            pair = [stack.enter_context(started(place, "scheduler")) for _ in range(2)]
            for process in pair:
                process.wait_for(lambda one=process: STARTED in one.out, "its start")  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))
            for process in pair:
                process.kill()
        stack.enter_context(started(place, "scheduler"))
        wanted = since + timedelta(days=1)
        until(lambda: seen_until(place) >= wanted, "the last tick")
    assert ticks(place) == Schedule("* * * * *").between(since, seen_until(place))


def test_a_scheduler_ends_when_it_is_told_to(make_place: MakePlace) -> None:
    place = make_place(YEARLY)
    with started(place, "scheduler") as process:
        process.wait_for(lambda: STARTED in process.out, "its start")
        process.send(signal.SIGTERM)
        assert process.wait(5).code == 0


def test_up_runs_a_scheduler_where_something_has_a_schedule(make_place: MakePlace) -> None:
    place = make_place(YEARLY)
    with started(place, "up") as process:
        process.wait_for(
            lambda: STARTED in process.out and " takes " in process.out, "the start of both"
        )
        declared = "SELECT count(*) FROM tidegate_control.schedules"
        until(lambda: place.control.value(declared) == 1, "the first look")
        process.send(signal.SIGTERM)
        ended = process.wait(20)
    assert ended.code == 0, ended
    assert "1 worker process and a scheduler; Ctrl-C ends" in ended.out


def test_up_runs_no_scheduler_where_nothing_has_a_schedule(make_place: MakePlace) -> None:
    place = make_place({key: value for key, value in YEARLY.items() if key != "schedule"})
    with started(place, "up") as process:
        process.wait_for(lambda: " takes " in process.out, "the start of the worker")
        process.send(signal.SIGTERM)
        assert "scheduler" not in process.wait(20).out
