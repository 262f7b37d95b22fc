"""Cron in time zones: no tick twice, none missed, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.cron import CatchUp, Schedule

ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
CRONS = st.sampled_from(["*/15 * * * *", "0 * * * *", "30 2 * * *", "5 1,2,3 * * *", "0 0 * * 0"])
STARTS = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(CRONS, ZONES, STARTS, st.lists(st.integers(1, 6_000), min_size=1, max_size=12))
def test_ticks_are_the_same_whether_looked_at_often_or_once(
    cron: str, zone: str, start: datetime, steps: list[int]
) -> None:
    schedule = Schedule(cron, zone)
    found: list[datetime] = []
    seen = start
    for minutes in steps:
        now = seen + timedelta(minutes=minutes)
        found += schedule.due(seen, now, CatchUp.ALL)
        seen = now

    assert found == schedule.between(start, seen)
    assert found == sorted(set(found))
    assert all(start < tick <= seen for tick in found)


@given(CRONS, ZONES, STARTS)
def test_a_tick_is_at_a_minute_that_its_expression_names(
    cron: str, zone: str, start: datetime
) -> None:
    tick = Schedule(cron, zone).next_after(start)
    assert tick > start
    assert tick.second == 0


@pytest.mark.parametrize(
    ("start", "ticks"),
    [
        # Spring: half past two does not exist, it is due when the clock has jumped.
        ("2026-03-28T12:00+00:00", ["2026-03-29T01:00+00:00", "2026-03-30T00:30+00:00"]),
        # Autumn: half past two comes twice, it is due once.
        ("2026-10-24T12:00+00:00", ["2026-10-25T00:30+00:00", "2026-10-26T01:30+00:00"]),
    ],
)
def test_a_daily_tick_comes_once_a_day_when_the_clock_is_changed(
    start: str, ticks: list[str]
) -> None:
    schedule, moment = Schedule("30 2 * * *", "Europe/Berlin"), datetime.fromisoformat(start)
    found = schedule.between(moment, moment + timedelta(days=2))
    assert found == [datetime.fromisoformat(one) for one in ticks]


def test_an_hourly_tick_comes_every_hour_when_the_clock_is_changed() -> None:
    schedule = Schedule("0 * * * *", "Europe/Berlin")
    for start, hours in (("2026-03-28T23:00+00:00", 23), ("2026-10-24T22:00+00:00", 25)):
        moment = datetime.fromisoformat(start)
        assert len(schedule.between(moment, moment + timedelta(hours=hours))) == hours


def test_missed_ticks_are_queued_as_the_schedule_says() -> None:
    schedule = Schedule("0 * * * *")
    seen = datetime(2026, 11, 1, 0, 0, tzinfo=UTC)
    late = datetime(2026, 11, 1, 3, 20, tzinfo=UTC)

    assert schedule.due(seen, late, CatchUp.NONE) == []
    assert schedule.due(seen, late, CatchUp.LAST) == [datetime(2026, 11, 1, 3, tzinfo=UTC)]
    assert len(schedule.due(seen, late, CatchUp.ALL)) == 3
    on_time = datetime(2026, 11, 1, 3, 0, 5, tzinfo=UTC)
    assert schedule.due(seen, on_time, CatchUp.NONE) == [datetime(2026, 11, 1, 3, tzinfo=UTC)]


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "0 0 30 2 *", "@daily", "a b c d e"])
def test_what_is_no_schedule_is_refused(cron: str) -> None:
    with pytest.raises(ValueError, match="five fields"):
        Schedule(cron)
