"""Schedulers, any number: each tick is queued once, none is missed, what keeps failing is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.conftest import MakePlace
from integration.job_store import shared
from integration.scheduling import Clockwork, at, open_clockwork, scheduled
from tidegate.core.cron import GRACE, CatchUp, Schedule
from tidegate.core.errors import ConnectionFailed
from tidegate.jobs.job import NOTHING, JobStatus
from tidegate.jobs.scheduler import ScheduleRound
from tidegate.jobs.schedules import Scheduled, Schedules

CRONS = [
    ("30 2 * * *", "Europe/Berlin"),
    ("*/20 * * * *", "America/New_York"),
    ("0 * * * *", "Australia/Lord_Howe"),
    ("15 3 * * 1-5", "UTC"),
]
# Each of these spans at least one change of the clock in one of the zones.
STARTS = ["2026-03-07 12:00", "2026-03-28 12:00", "2026-10-24 12:00", "2026-10-31 12:00"]


LIMITS = {"disable_after": 3, "disable_window": "1 hour", "disable_for": "30 minutes"}


opened, clockwork = shared(lambda places: open_clockwork(places(scheduler=LIMITS)))


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


SIDE_BY_SIDE = [
    pytest.param(
        start,
        schedulers,
        catch_up,
        marks=[] if (place, schedulers) == (number, 3) else pytest.mark.chaos,
    )
    for place, start in enumerate(STARTS)
    for schedulers in (2, 3, 5)
    for number, catch_up in enumerate(CatchUp)
]


@pytest.mark.parametrize(("start", "schedulers", "catch_up"), SIDE_BY_SIDE)
def test_schedulers_side_by_side_queue_each_tick_once_and_miss_none(
    clockwork: Clockwork, start: str, schedulers: int, catch_up: CatchUp
) -> None:
    declared = [
        scheduled(cron, zone, catch_up, name=f"n{number}")
        for number, (cron, zone) in enumerate(CRONS)
    ]
    begin = at(start)
    nows = moments(STARTS.index(start) * 10 + schedulers, begin, days=1.2)
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


@pytest.mark.chaos
@given(
    minute=st.sampled_from(["0", "30", "*/17", "5,55"]),
    hour=st.sampled_from(["*", "2", "1-3", "*/5"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    start=st.sampled_from(STARTS),
    gaps=st.lists(st.integers(0, 60 * 30), min_size=1, max_size=12),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whenever_it_looks_the_ticks_up_to_then_have_been_queued_once(
    clockwork: Clockwork, minute: str, hour: str, zone: str, start: str, gaps: list[int]
) -> None:
    one = scheduled(f"{minute} {hour} * * *", zone, CatchUp.ALL, name=uuid4().hex)
    now = at(start)
    clockwork.begin(now, one)
    for gap in gaps:
        now += timedelta(minutes=gap)
        # One that has just started knows nothing but what is in the database.
        scheduler = clockwork.scheduler(one)
        for _ in range(5):
            scheduler.run_once(clockwork.control, now)
        assert clockwork.queued(one.name) == one.schedule.between(at(start), now)


def test_many_ticks_that_nobody_saw_are_caught_up_with_in_pieces(clockwork: Clockwork) -> None:
    one = scheduled("0 */4 * * *", "Europe/Berlin", CatchUp.ALL)
    begin, end = at("2026-03-01 00:30"), at("2026-04-10 00:30")
    clockwork.begin(begin, one)
    clockwork.simulate([end] * 4, [one], 2)
    wanted = one.schedule.between(begin, end)
    assert len(wanted) == 240
    assert clockwork.queued() == wanted
    # The last of more ticks than are looked at at once is queued.
    last = scheduled("* * * * *", catch_up=CatchUp.LAST, name="last")
    clockwork.begin(at("2026-01-01 00:00"), last)
    done = clockwork.scheduler(last).run_once(clockwork.control, at("2026-01-09 00:00"))
    assert (done.queued, clockwork.queued("last")) == (1, [at("2026-01-09 00:00")])


def test_a_tick_while_the_last_run_is_unfinished_is_coalesced(clockwork: Clockwork) -> None:
    clockwork.coalesce = True
    one = scheduled(catch_up=CatchUp.ALL)
    clockwork.begin(at("2026-05-01 00:00"), one)
    scheduler = clockwork.scheduler(one)
    done = scheduler.run_once(clockwork.control, at("2026-05-01 03:30"))
    assert (done.queued, done.coalesced) == (1, 2)
    assert clockwork.queued() == [at("2026-05-01 01:00")]
    ((job_id,),) = set(clockwork.execute("SELECT job_id FROM schedule_ticks"))
    claim = clockwork.claim(job_id)
    # Running is unfinished too.
    assert scheduler.run_once(clockwork.control, at("2026-05-01 04:00")).coalesced == 1
    assert clockwork.finish(claim)
    assert scheduler.run_once(clockwork.control, at("2026-05-01 05:00")).queued == 1
    assert clockwork.queued() == [at("2026-05-01 01:00"), at("2026-05-01 05:00")]


def test_a_schedule_that_is_new_or_changed_begins_now(clockwork: Clockwork) -> None:
    control, hourly = clockwork.control, scheduled(catch_up=CatchUp.ALL)
    scheduler = clockwork.scheduler(hourly)
    assert scheduler.run_once(control, at("2026-05-01 10:00")) == ScheduleRound()
    often = scheduled("*/10 * * * *", catch_up=CatchUp.ALL)
    changed = clockwork.scheduler(often)
    assert changed.run_once(control, at("2026-05-01 12:35")) == ScheduleRound()
    assert changed.run_once(control, at("2026-05-01 12:45")).queued == 1
    assert clockwork.queued() == [at("2026-05-01 12:40")]
    # One that is declared again makes up for nothing.
    clockwork.scheduler().run_once(control, at("2026-05-01 13:30"))
    assert clockwork.scheduler(hourly).run_once(control, at("2026-05-01 20:30")) == ScheduleRound()
    assert clockwork.scheduler(hourly).run_once(control, at("2026-05-01 21:30")).queued == 1
    assert clockwork.queued()[1:] == [at("2026-05-01 21:00")]


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
        assert scheduler.run_once(control, at(f"2026-05-01 0{hour}:00")) == ScheduleRound()
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
    assert scheduler.run_once(control, at("2026-05-01 03:30")) == ScheduleRound()
    plane.stop_draining(control)
    assert scheduler.run_once(control, at("2026-05-01 03:30")).queued == 3


def test_one_that_cannot_be_queued_stays_due_and_stops_no_other(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = clockwork.control
    broken, well = scheduled(name="broken"), scheduled(name="well")
    clockwork.begin(at("2026-05-01 00:30"), broken, well)
    scheduler = clockwork.scheduler(broken, well)
    prepare = clockwork.prepare

    def fail(one: object, tick: datetime) -> object:
        if one is broken:
            raise ConnectionFailed("the warehouse is away")
        return prepare(one, tick)  # type: ignore[arg-type]

    monkeypatch.setitem(scheduler._prepare, NOTHING, fail)
    assert scheduler.run_once(control, at("2026-05-01 01:00")).queued == 1
    assert (clockwork.queued("broken"), clockwork.queued("well")) == ([], [at("2026-05-01 01:00")])
    monkeypatch.setitem(scheduler._prepare, NOTHING, prepare)
    # Not every second, but soon.
    assert scheduler.run_once(control, at("2026-05-01 01:00:01")).queued == 0
    assert scheduler.run_once(control, at("2026-05-01 01:00:30")).queued == 1
    assert clockwork.queued("broken") == [at("2026-05-01 01:00")]


# What fails too often is disabled: by the count, for a time, and until somebody enables it

MINUTELY = "* * * * *"
MINUTE = timedelta(minutes=1)
FAILED, DONE = JobStatus.FAILED, JobStatus.DONE


@pytest.fixture
def now() -> datetime:
    """A full minute, in the days of the database's own clock."""
    return datetime.now(UTC).replace(second=0, microsecond=0)


def run(clockwork: Clockwork, one: Scheduled, start: datetime, *statuses: JobStatus) -> datetime:
    """A minute after the other, whatever was queued ends like this; returns the last of them."""
    scheduler, now = clockwork.scheduler(one), start
    for status in statuses:
        now += MINUTE
        assert scheduler.run_once(clockwork.control, now).queued == 1
        for (job_id,) in clockwork.execute("SELECT job_id FROM job_queue ORDER BY 1"):
            assert clockwork.finish(clockwork.claim(job_id), status, "it broke")
            clockwork.execute("UPDATE jobs SET finished_at = %s WHERE job_id = %s", now, job_id)
    return now


def test_after_so_many_failures_it_is_not_queued_until_its_time_is_over(
    clockwork: Clockwork, now: datetime
) -> None:
    one, other = scheduled(MINUTELY, catch_up=CatchUp.NONE), scheduled(MINUTELY, name="other")
    clockwork.begin(now, one)
    last = run(clockwork, one, now, FAILED, FAILED, DONE, FAILED)
    clockwork.begin(last, one, other)
    scheduler = clockwork.scheduler(one, other)
    done = scheduler.run_once(clockwork.control, last + MINUTE)
    assert (done.queued, done.disabled) == (1, 1)
    assert clockwork.queued("other") == [last + MINUTE]
    found = clockwork.states.disabled(clockwork.control, "nothing", last + 2 * MINUTE)
    assert found is not None
    assert (found.failures, found.by) == (3, "scheduler")
    assert found.until == last + 31 * MINUTE
    scheduler = clockwork.scheduler(one)
    assert scheduler.run_once(clockwork.control, last + 30 * MINUTE).disabled == 1
    clockwork.execute("DELETE FROM job_queue USING jobs j WHERE j.name = 'other'")
    # A clean slate: two failures more are not too many.
    again = run(clockwork, one, last + 31 * MINUTE, FAILED, FAILED)
    assert scheduler.run_once(clockwork.control, again + MINUTE).queued == 1
    assert len(clockwork.ticks(outcome="disabled")) == 2


def test_failures_far_apart_or_of_what_it_waited_for_disable_nothing(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY, catch_up=CatchUp.NONE)
    clockwork.begin(now - timedelta(hours=5), one)
    for hours in (4, 3, 2, 1):
        run(clockwork, one, now - timedelta(hours=hours), FAILED)
    assert clockwork.scheduler(one).run_once(clockwork.control, now).queued == 1
    clockwork.clean()
    clockwork.begin(now, one)
    last = run(clockwork, one, now, FAILED, FAILED, FAILED)
    clockwork.execute("UPDATE jobs SET attempt_count = 0")
    assert clockwork.scheduler(one).run_once(clockwork.control, last + MINUTE).queued == 1


def test_a_declaration_says_how_many_failures_are_too_many_and_a_person_when_it_is_over(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY, disable_after=1)
    start = now - 6 * MINUTE
    clockwork.begin(start, one)
    last = run(clockwork, one, start, FAILED)
    scheduler = clockwork.scheduler(one)
    assert scheduler.run_once(clockwork.control, last + MINUTE).disabled == 1
    assert clockwork.states.enable(clockwork.control, "nothing", "ana")
    assert not clockwork.states.enable(clockwork.control, "nothing", "ana")
    assert scheduler.run_once(clockwork.control, last + 2 * MINUTE).queued == 1


def test_of_a_group_the_table_that_fails_is_left_out_and_the_others_go_on(
    make_place: MakePlace, now: datetime
) -> None:
    group = {"source": "shop:public.*", "target": "warehouse:raw.{table}", "cursor": "updated_at"}
    place = make_place(
        {**group, "name": "all", "schedule": MINUTELY}, scheduler={"disable_after": 2}
    )
    for table in ("good", "bad"):
        place.source.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, updated_at timestamptz NOT NULL)"
        )
    with open_clockwork(place) as clockwork:
        control, scheduler = clockwork.control, clockwork.project.scheduler("test")

        def tick(minutes: int) -> set[str]:
            """The tables that are queued for it; jobs of the bad one fail, the others are done."""
            assert scheduler.run_once(control, now + minutes * MINUTE).queued == 1
            rows = clockwork.execute("SELECT job_id, name FROM job_queue JOIN jobs USING (job_id)")
            for job_id, name in rows:
                status = FAILED if name == "all.bad" else DONE
                assert clockwork.finish(clockwork.claim(job_id), status, "it broke")
            return {name for _, name in rows}

        scheduler.run_once(control, now)
        assert tick(1) == tick(2) == {"all.good", "all.bad"}
        assert tick(3) == {"all.good"}
        assert clockwork.states.enable(control, "all", "ana")
        assert tick(4) == {"all.good", "all.bad"}


PIPELINES = """
from datetime import date
import tidegate as tg

@tg.task(retries=0)
def revenue(ctx, day: date):
    if day == date(2026, 5, 1):
        raise ValueError("broken")

@tg.task(requires=lambda day: [tg.needs(revenue, day=date(2026, 5, 1) if day.day < 5 else day)],
         schedule="0 0 * * *", catch_up="all")
def report(ctx, day: date):
    pass
"""


def test_a_run_of_a_task_that_fails_too_often_is_disabled_and_its_other_runs_go_on(
    make_place: MakePlace,
) -> None:
    place = make_place(pipelines=PIPELINES, scheduler={**LIMITS, "disable_after": 2})
    with open_clockwork(place) as clockwork:
        project, control, states = clockwork.project, clockwork.control, clockwork.states
        scheduler = project.scheduler("test")
        scheduler.run_once(control, at("2026-05-01 12:00"))
        found = []
        for day in range(2, 6):
            done = scheduler.run_once(control, at(f"2026-05-0{day}"))
            found.append((done.queued, done.disabled))
            project.worker(burst=True).run()
        # The reports of the 2nd and 3rd failed with it; that of the 4th was not even queued.
        assert found == [(1, 0), (1, 0), (0, 1), (1, 0)]
        detail = clockwork.value("SELECT detail FROM schedule_ticks WHERE outcome = 'disabled'")
        assert detail.startswith("revenue(day=2026-05-01): 2 failures; disabled until ")
        assert not states.enable(control, "report", "ana")
        assert states.enable(control, "revenue", "ana")
        assert not states.enable(control, "revenue", "ana")
        # A person may always ask for it.
        assert project.submit_task("revenue", day="2026-05-01").created
