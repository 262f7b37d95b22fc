"""Schedulers, any number of them: each tick is queued once, and none is missed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest

from integration.conftest import MakePlace
from integration.scheduling import Clockwork, at, open_clockwork, scheduled
from tidegate.control.jobs import Jobs
from tidegate.control.schedules import Schedules
from tidegate.model.job import NOTHING, JobStatus
from tidegate.model.schedule import GRACE, CatchUp, Schedule
from tidegate.runtime.scheduler import Scheduling

CRONS = [
    ("30 2 * * *", "Europe/Berlin"),
    ("*/20 * * * *", "America/New_York"),
    ("0 * * * *", "Australia/Lord_Howe"),
    ("15 3 * * 1-5", "UTC"),
]
# Each of these spans at least one change of the clock in one of the zones.
STARTS = ["2026-03-07 12:00", "2026-03-28 12:00", "2026-10-24 12:00", "2026-10-31 12:00"]


@pytest.fixture
def clockwork(make_place: MakePlace) -> Iterator[Clockwork]:
    with open_clockwork(make_place()) as opened:
        yield opened


def moments(seed: int, start: datetime, days: float) -> list[datetime]:
    """Looks at irregular moments, with a few long absences."""
    chance, now, found = random.Random(seed), start, []
    while now < start + timedelta(days=days):
        away = chance.random() < 0.1
        now += timedelta(minutes=chance.uniform(60, 900) if away else chance.uniform(1, 50))
        found.append(now)
    return found


def expected(
    schedule: Schedule, start: datetime, nows: Sequence[datetime], catch_up: CatchUp
) -> list[datetime]:
    """What the ticks between two looks come to, from the definition of catch_up alone."""
    found: list[datetime] = []
    for before, now in zip([start, *nows], nows, strict=False):
        ticks = schedule.between(before, now)
        if catch_up is CatchUp.ALL:
            found += ticks
        elif ticks and (catch_up is CatchUp.LAST or now - ticks[-1] <= GRACE):
            found.append(ticks[-1])
    return found


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("schedulers", [2, 5])
@pytest.mark.parametrize("start", STARTS)
def test_schedulers_side_by_side_queue_each_tick_once_and_miss_none(
    clockwork: Clockwork, start: str, schedulers: int, catch_up: CatchUp
) -> None:
    declared = [
        scheduled(cron, zone, catch_up, name=f"n{number}")
        for number, (cron, zone) in enumerate(CRONS)
    ]
    begin = at(start)
    nows = moments(STARTS.index(start) * 10 + schedulers, begin, days=2)
    clockwork.begin(begin, *declared)
    done = clockwork.simulate(nows, declared, schedulers)
    for one in declared:
        wanted = expected(one.schedule, begin, nows, catch_up)
        assert clockwork.ticks(one.name, "queued") == wanted
        assert clockwork.queued(one.name) == wanted
        if catch_up is CatchUp.ALL:
            assert wanted == one.schedule.between(begin, nows[-1])
    assert sum(one.queued for one in done) == sum(
        len(clockwork.ticks(one.name)) for one in declared
    )


def test_a_hundred_days_that_nobody_saw_are_caught_up_with_in_pieces(clockwork: Clockwork) -> None:
    one = scheduled("0 */4 * * *", "Europe/Berlin", CatchUp.ALL)
    begin, end = at("2026-02-01 00:30"), at("2026-05-12 00:30")
    clockwork.begin(begin, one)
    clockwork.simulate([end] * 10, [one], 2)
    wanted = one.schedule.between(begin, end)
    assert len(wanted) == 600
    assert clockwork.queued() == wanted


def test_the_last_of_more_ticks_than_are_looked_at_at_once_is_queued(clockwork: Clockwork) -> None:
    one = scheduled("* * * * *", catch_up=CatchUp.LAST)
    clockwork.begin(at("2026-01-01 00:00"), one)
    done = clockwork.scheduler(one).run_once(clockwork.control, at("2026-01-09 00:00"))
    assert clockwork.queued() == [at("2026-01-09 00:00")]
    assert done.queued == 1


def test_a_tick_while_the_last_run_is_unfinished_is_coalesced(clockwork: Clockwork) -> None:
    clockwork.coalesce = True
    one = scheduled(catch_up=CatchUp.ALL)
    clockwork.begin(at("2026-05-01 00:00"), one)
    scheduler = clockwork.scheduler(one)
    done = scheduler.run_once(clockwork.control, at("2026-05-01 03:30"))
    assert (done.queued, done.coalesced) == (1, 2)
    assert clockwork.queued() == [at("2026-05-01 01:00")]
    ((job_id,),) = set(
        clockwork.control.execute("SELECT job_id FROM tidegate_control.schedule_ticks").fetchall()
    )
    jobs = Jobs(clockwork.project.context.plane)
    claim = jobs.claim(clockwork.control, "w", job_id, lease_seconds=60)
    assert claim is not None
    # Running is unfinished too.
    assert scheduler.run_once(clockwork.control, at("2026-05-01 04:00")).coalesced == 1
    jobs.finish(clockwork.control, claim, JobStatus.DONE, actor="w")
    assert scheduler.run_once(clockwork.control, at("2026-05-01 05:00")).queued == 1
    assert clockwork.queued() == [at("2026-05-01 01:00"), at("2026-05-01 05:00")]


def test_a_schedule_that_is_new_or_changed_begins_now(clockwork: Clockwork) -> None:
    control, hourly = clockwork.control, scheduled(catch_up=CatchUp.ALL)
    scheduler = clockwork.scheduler(hourly)
    assert scheduler.run_once(control, at("2026-05-01 10:00")) == Scheduling()
    often = scheduled("*/10 * * * *", catch_up=CatchUp.ALL)
    changed = clockwork.scheduler(often)
    assert changed.run_once(control, at("2026-05-01 12:35")) == Scheduling()
    assert changed.run_once(control, at("2026-05-01 12:45")).queued == 1
    assert clockwork.queued() == [at("2026-05-01 12:40")]


def test_a_schedule_that_is_declared_again_makes_up_for_nothing(clockwork: Clockwork) -> None:
    control, one = clockwork.control, scheduled(catch_up=CatchUp.ALL)
    clockwork.begin(at("2026-05-01 00:00"), one)
    clockwork.scheduler().run_once(control, at("2026-05-01 00:30"))
    assert clockwork.scheduler(one).run_once(control, at("2026-05-01 10:30")) == Scheduling()
    assert clockwork.scheduler(one).run_once(control, at("2026-05-01 11:30")).queued == 1
    assert clockwork.queued() == [at("2026-05-01 11:00")]


@pytest.mark.parametrize(
    ("catch_up", "wanted"), [(CatchUp.NONE, 0), (CatchUp.LAST, 1), (CatchUp.ALL, 5)]
)
def test_what_a_pause_passed_over_is_made_up_for_as_catch_up_says(
    clockwork: Clockwork, catch_up: CatchUp, wanted: int
) -> None:
    control, one = clockwork.control, scheduled(catch_up=catch_up)
    schedules = Schedules(clockwork.project.context.plane, clockwork.project.name)
    clockwork.begin(at("2026-05-01 00:30"), one)
    scheduler = clockwork.scheduler(one)
    assert schedules.pause(control, "nothing", "ana", "a move")
    assert not schedules.pause(control, "nothing", "ben")
    for hour in range(1, 6):
        assert scheduler.run_once(control, at(f"2026-05-01 0{hour}:00")) == Scheduling()
    (line,) = schedules.list(control)
    assert (line.paused_by, line.paused_reason, line.next_tick) == ("ana", "a move", None)
    assert schedules.resume(control, "nothing")
    assert not schedules.resume(control, "nothing")
    assert scheduler.run_once(control, at("2026-05-01 05:30")).queued == wanted
    assert scheduler.run_once(control, at("2026-05-01 06:00")).queued == 1


def test_while_the_control_plane_drains_nothing_is_queued_and_nothing_is_forgotten(
    clockwork: Clockwork,
) -> None:
    control, one = clockwork.control, scheduled(catch_up=CatchUp.ALL)
    plane = clockwork.project.context.plane
    clockwork.begin(at("2026-05-01 00:30"), one)
    scheduler = clockwork.scheduler(one)
    plane.start_draining(control, "ana")
    assert scheduler.run_once(control, at("2026-05-01 03:30")) == Scheduling()
    plane.stop_draining(control)
    assert scheduler.run_once(control, at("2026-05-01 03:30")).queued == 3


def test_one_that_cannot_be_queued_stays_due_and_stops_no_other(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.errors import ConnectionFailed

    control = clockwork.control
    broken, well = scheduled(name="broken"), scheduled(name="well")
    clockwork.begin(at("2026-05-01 00:30"), broken, well)
    scheduler = clockwork.scheduler(broken, well)
    prepare = clockwork.prepare

    def fail(one: object, tick: datetime) -> object:
        if one is broken:
            raise ConnectionFailed("the warehouse is away")
        return prepare(one, tick)  # type: ignore[arg-type]

    monkeypatch.setitem(scheduler._prepare, NOTHING, fail)  # type: ignore[arg-type]
    assert scheduler.run_once(control, at("2026-05-01 01:00")).queued == 1
    assert (clockwork.queued("broken"), clockwork.queued("well")) == ([], [at("2026-05-01 01:00")])
    monkeypatch.setitem(scheduler._prepare, NOTHING, prepare)  # type: ignore[arg-type]
    # Not every second, but soon.
    assert scheduler.run_once(control, at("2026-05-01 01:00:01")).queued == 0
    assert scheduler.run_once(control, at("2026-05-01 01:00:30")).queued == 1
    assert clockwork.queued("broken") == [at("2026-05-01 01:00")]
