"""Scheduler processes that are killed anywhere have forgotten nothing, and leave when told to."""

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
from integration.job_store import shared
from integration.receiver import receiving
from integration.scheduling import Clockwork, open_clockwork
from tidegate.admin.state import check_file
from tidegate.core.cron import Schedule
from tidegate.jobs.job import SYNC, JobStatus

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


opened, clockwork = shared(
    lambda places: open_clockwork(places(MINUTELY, scheduler={"poll": "20ms"}))
)


def look_back(clockwork: Clockwork, minutes: int) -> datetime:
    """As if no scheduler had been there for so long."""
    clockwork.project.scheduler("test").run_once(clockwork.control)
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=minutes)
    clockwork.execute("DELETE FROM schedule_ticks")
    clockwork.execute("UPDATE schedules SET seen_until = %s", since)
    return since


def seen_until(clockwork: Clockwork) -> datetime:
    found = clockwork.value("SELECT seen_until FROM schedules")
    assert isinstance(found, datetime)
    return found


def test_one_that_is_killed_between_any_two_steps_leaves_all_or_nothing(
    clockwork: Clockwork,
) -> None:
    place = clockwork.place
    for point in ("tick.queued", "tick.noted", "tick.queued@5", "tick.committed"):
        clockwork.clean()
        since = look_back(clockwork, 10)
        with started(place, "scheduler", failpoint=f"{point}=kill") as process:
            assert process.wait().code == -signal.SIGKILL
        left = clockwork.ticks("orders")
        jobs = clockwork.value("SELECT count(*) FROM jobs")
        if point == "tick.committed":
            assert (len(left), jobs) == (10, 1)
        else:
            assert (left, jobs, seen_until(clockwork)) == ([], 0, since), point
        assert clockwork.run("scheduler", "--once").code == 0
        wanted = Schedule("* * * * *").between(since, seen_until(clockwork))
        assert clockwork.ticks("orders") == wanted, point
        assert clockwork.value("SELECT count(*) FROM jobs") == 1


@pytest.mark.chaos
def test_schedulers_that_are_killed_again_and_again_queue_every_tick_once(
    clockwork: Clockwork,
) -> None:
    since = look_back(clockwork, 60 * 24)
    chance = random.Random(9)
    with ExitStack() as stack:
        for _ in range(4):
            pair = [stack.enter_context(started(clockwork.place, "scheduler")) for _ in range(2)]
            for process in pair:
                process.wait_for(lambda one=process: STARTED in one.out, "its start")  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))
            for process in pair:
                process.kill()
        stack.enter_context(started(clockwork.place, "scheduler"))
        wanted = since + timedelta(days=1)
        until(lambda: seen_until(clockwork) >= wanted, "the last tick")
    found = clockwork.ticks("orders")
    assert found == Schedule("* * * * *").between(since, seen_until(clockwork))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_scheduler_tells_people_leaves_its_state_and_takes_it_up_again(
    make_place: MakePlace, number: signal.Signals
) -> None:
    with receiving() as receiver:
        place = make_place(
            YEARLY, scheduler={"state_path": "kept/state.json"}, notify={"webhook": receiver.url}
        )
        with open_clockwork(place) as clockwork:
            clockwork.end(JobStatus.FAILED, "it broke", kind=SYNC)
            waiting = [clockwork.submit(name) for name in ("first", "second")]
        with started(place, "scheduler") as process:
            process.wait_for(lambda: STARTED in process.out, "its start")
            assert receiver.arrived.acquire(timeout=60)
            process.send(number)
            assert process.wait(30).code == 0
        assert receiver.texts[0].startswith("shop: orders failed")
    path = place.folder / "kept" / "state.json"
    assert check_file(path).project == "shop"
    if number is signal.SIGTERM:
        # The control database is lost.
        place.control.execute("DROP SCHEMA tidegate_control CASCADE")
        with started(place, "scheduler") as process:
            process.wait_for(lambda: STARTED in process.out, "its start")
            rows = place.control.execute("SELECT job_id FROM tidegate_control.job_queue ORDER BY 1")
            assert [row[0] for row in rows] == waiting


def test_a_scheduler_does_not_start_over_a_damaged_file(make_place: MakePlace) -> None:
    place = make_place(scheduler={"state_path": "state.json"})
    path = place.folder / "state.json"
    path.write_bytes(b"damaged")
    with started(place, "scheduler") as process:
        ended = process.wait(30)
    assert ended.code == 2
    assert "state.json is no state file" in ended.err
    assert "kept as it is" in ended.err
    assert path.read_bytes() == b"damaged"


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
