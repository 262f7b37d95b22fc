"""What fails too often is disabled: by the count, for a time, and until somebody enables it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from integration.conftest import MakePlace
from integration.scheduling import Clockwork, open_clockwork, scheduled
from tidegate.control.jobs import Jobs
from tidegate.control.task_states import TaskStates
from tidegate.model.job import JobStatus
from tidegate.model.schedule import CatchUp
from tidegate.model.scheduled import Scheduled

MINUTELY = "* * * * *"


@pytest.fixture
def clockwork(make_place: MakePlace) -> Iterator[Clockwork]:
    limits = {"disable_after": 3, "disable_window": "1 hour", "disable_for": "30 minutes"}
    with open_clockwork(make_place(scheduler=limits)) as opened:
        yield opened


@pytest.fixture
def now() -> datetime:
    """A full minute, in the days of the database's own clock."""
    return datetime.now(UTC).replace(second=0, microsecond=0)


def end_all(clockwork: Clockwork, status: JobStatus, at: datetime) -> list[UUID]:
    """Whatever is queued ends so, at this moment."""
    jobs, control = Jobs(clockwork.project.context.plane), clockwork.control
    rows = control.execute("SELECT job_id FROM tidegate_control.job_queue ORDER BY 1").fetchall()
    for (job_id,) in rows:
        claim = jobs.claim(control, "w", job_id, lease_seconds=60)
        assert claim is not None
        assert jobs.finish(control, claim, status, actor="w", error="it broke")
        control.execute(
            "UPDATE tidegate_control.jobs SET finished_at = %s WHERE job_id = %s", (at, job_id)
        )
    return [row[0] for row in rows]


def run(
    clockwork: Clockwork, one: Scheduled, start: datetime, statuses: list[JobStatus]
) -> datetime:
    """A minute after the other, whatever was queued ends like this; returns the last of them."""
    scheduler, now = clockwork.scheduler(one), start
    for status in statuses:
        now += timedelta(minutes=1)
        assert scheduler.run_once(clockwork.control, now).queued == 1
        end_all(clockwork, status, now)
    return now


FAILED, DONE = JobStatus.FAILED, JobStatus.DONE


def test_after_so_many_failures_it_is_not_queued_until_its_time_is_over(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY, catch_up=CatchUp.NONE)
    clockwork.begin(now, one)
    last = run(clockwork, one, now, [FAILED, FAILED, DONE, FAILED])
    scheduler = clockwork.scheduler(one)
    states = TaskStates(clockwork.project.context.plane, clockwork.project.name)
    done = scheduler.run_once(clockwork.control, last + timedelta(minutes=1))
    assert (done.queued, done.disabled) == (0, 1)
    found = states.disabled(clockwork.control, "nothing", last + timedelta(minutes=2))
    assert found is not None
    assert (found.failures, found.by) == (3, "scheduler")
    assert found.until == last + timedelta(minutes=31)
    assert scheduler.run_once(clockwork.control, last + timedelta(minutes=30)).disabled == 1
    # A clean slate: two failures more are not too many.
    again = run(clockwork, one, last + timedelta(minutes=31), [FAILED, FAILED])
    assert scheduler.run_once(clockwork.control, again + timedelta(minutes=1)).queued == 1
    assert len(clockwork.ticks(outcome="disabled")) == 2


def test_failures_that_lie_further_apart_than_the_window_disable_nothing(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY, catch_up=CatchUp.NONE)
    clockwork.begin(now - timedelta(hours=5), one)
    for hours in (4, 3, 2, 1):
        run(clockwork, one, now - timedelta(hours=hours), [FAILED])
    assert clockwork.scheduler(one).run_once(clockwork.control, now).queued == 1


def test_a_declaration_may_say_how_many_failures_are_too_many(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY, disable_after=1)
    clockwork.begin(now, one)
    last = run(clockwork, one, now, [FAILED])
    scheduler = clockwork.scheduler(one)
    assert scheduler.run_once(clockwork.control, last + timedelta(minutes=1)).disabled == 1


def test_what_somebody_enables_is_queued_again_at_once(clockwork: Clockwork, now: datetime) -> None:
    one = scheduled(MINUTELY)
    start = now - timedelta(minutes=6)
    clockwork.begin(start, one)
    last = run(clockwork, one, start, [FAILED, FAILED, FAILED])
    scheduler = clockwork.scheduler(one)
    assert scheduler.run_once(clockwork.control, last + timedelta(minutes=1)).disabled == 1
    states = TaskStates(clockwork.project.context.plane, clockwork.project.name)
    assert states.enable(clockwork.control, "nothing", "ana")
    assert not states.enable(clockwork.control, "nothing", "ana")
    assert scheduler.run_once(clockwork.control, last + timedelta(minutes=2)).queued == 1


def test_a_job_that_only_waited_for_one_that_failed_does_not_count(
    clockwork: Clockwork, now: datetime
) -> None:
    one = scheduled(MINUTELY)
    clockwork.begin(now, one)
    last = run(clockwork, one, now, [FAILED, FAILED, FAILED])
    clockwork.control.execute("UPDATE tidegate_control.jobs SET attempt_count = 0")
    scheduler = clockwork.scheduler(one)
    assert scheduler.run_once(clockwork.control, last + timedelta(minutes=1)).queued == 1


def test_others_are_queued_while_one_is_disabled(clockwork: Clockwork, now: datetime) -> None:
    one, other = scheduled(MINUTELY), scheduled(MINUTELY, name="other")
    clockwork.begin(now, one, other)
    last = run(clockwork, one, now, [FAILED, FAILED, FAILED])
    clockwork.begin(last, one, other)
    done = clockwork.scheduler(one, other).run_once(clockwork.control, last + timedelta(minutes=1))
    assert (done.queued, done.disabled) == (1, 1)
    assert clockwork.queued("other") == [last + timedelta(minutes=1)]


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
        project, control = clockwork.project, clockwork.control
        states = TaskStates(project.context.plane, project.name)
        scheduler = project.scheduler("test")

        def tick(minutes: int) -> set[str]:
            """The tables that are queued for it; jobs of the bad one fail, the others are done."""
            moment = now + timedelta(minutes=minutes)
            assert scheduler.run_once(control, moment).queued == 1
            rows = control.execute(
                "SELECT job_id, name FROM tidegate_control.job_queue q"
                " JOIN tidegate_control.jobs j USING (job_id)"
            ).fetchall()
            jobs = Jobs(project.context.plane)
            for job_id, name in rows:
                claim = jobs.claim(control, "w", job_id, lease_seconds=60)
                assert claim is not None
                status = FAILED if name == "all.bad" else DONE
                assert jobs.finish(control, claim, status, actor="w", error="it broke")
            return {name for _, name in rows}

        scheduler.run_once(control, now)
        assert tick(1) == tick(2) == {"all.good", "all.bad"}
        assert tick(3) == {"all.good"}
        assert states.enable(control, "all", "ana")
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
    limits = {"disable_after": 2, "disable_window": "1 hour", "disable_for": "30 minutes"}
    place = make_place(pipelines=PIPELINES, scheduler=limits)
    with place.open() as project:
        project.context.control_id()
        scheduler = project.scheduler("test")
        with project.context.plane.connect() as control:
            scheduler.run_once(control, datetime(2026, 5, 1, 12, tzinfo=UTC))
            found = []
            for day in range(2, 8):
                done = scheduler.run_once(control, datetime(2026, 5, day, tzinfo=UTC))
                found.append((done.queued, done.disabled))
                project.worker(burst=True).run()
            # The reports of the 2nd and 3rd failed with it; that of the 4th was not even queued.
            assert found == [(1, 0), (1, 0), (0, 1), (1, 0), (1, 0), (1, 0)]
            ((detail,),) = control.execute(
                "SELECT detail FROM tidegate_control.schedule_ticks WHERE outcome = 'disabled'"
            )
            assert detail.startswith("revenue(day=2026-05-01): 2 failures; disabled until ")
            states = TaskStates(project.context.plane, project.name)
            assert not states.enable(control, "report", "ana")
            assert states.enable(control, "revenue", "ana")
            assert not states.enable(control, "revenue", "ana")
        # A person may always ask for it.
        assert project.submit_task("revenue", day="2026-05-01").created
