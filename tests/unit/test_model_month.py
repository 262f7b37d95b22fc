"""Months: their bounds, and the names of the tables for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.history.record import moment_of
from tidegate.jobs.history.writer import Month

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9990, 1, 1), timezones=st.just(UTC))


@given(MOMENTS)
def test_a_moment_lies_within_its_month_and_the_next_begins_where_it_ends(at: datetime) -> None:
    month = Month.of(at)
    assert month.start <= at < month.end == month.next.start
    assert Month.of_partition(month.partition("tasks")) == month
    assert month.partition("tasks") < month.next.partition("tasks")


def test_months_are_those_of_utc() -> None:
    at = datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert Month.of(at) == Month(2026, 11)


def test_a_table_of_another_making_has_no_month() -> None:
    assert Month.of_partition("tasks_default") is None
    assert Month.of_partition("tasks_2026_13") is None


def test_any_id_has_a_moment() -> None:
    assert moment_of(UUID(int=2**128 - 1)).year == 9999
    assert moment_of(UUID(int=0)) == datetime(1970, 1, 1, tzinfo=UTC)
