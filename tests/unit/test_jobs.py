"""Jobs: ids, states, schedules, notices and the figures of their history."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core import identity
from tidegate.core.cron import CatchUp, Schedule
from tidegate.core.errors import UsageError
from tidegate.core.identity import new_job_id
from tidegate.core.units import Backoff
from tidegate.jobs.history.record import LEAST, PREVIOUS, Trend, moment_of, percentile, sparkline
from tidegate.jobs.history.writer import Month
from tidegate.jobs.job import JobState, JobStatus, job_state
from tidegate.jobs.job_view import id_range, short_ids
from tidegate.jobs.notices import Notice, NoticeEvent, notice_id, shorten, slack_message

FAILURES = st.integers(1, 10**18)
CHANCES = st.floats(0, 1)
BACKOFFS = st.builds(
    lambda first, times: Backoff(first, first * times), st.floats(1e-3, 1e6), st.floats(1, 1e6)
)


@given(BACKOFFS, FAILURES, CHANCES)
def test_a_wait_is_never_longer_than_the_longest_nor_shorter_than_half_the_first(
    backoff: Backoff, failures: int, chance: float
) -> None:
    wait = backoff.seconds(failures, chance)
    assert backoff.first_seconds / 2 <= wait <= backoff.longest_seconds


@given(BACKOFFS, FAILURES, CHANCES)
def test_the_jitter_takes_at_most_half_of_the_wait(
    backoff: Backoff, failures: int, chance: float
) -> None:
    whole = backoff.seconds(failures, 1.0)
    assert backoff.seconds(failures, 0.0) == whole / 2
    assert whole / 2 <= backoff.seconds(failures, chance) <= whole


@given(BACKOFFS, FAILURES, CHANCES)
def test_waits_grow_with_the_failures_until_the_longest(
    backoff: Backoff, failures: int, chance: float
) -> None:
    now, then = backoff.seconds(failures, chance), backoff.seconds(failures + 1, chance)
    assert now <= then
    doubled = backoff.seconds(failures, 1.0) * 2
    assert backoff.seconds(failures + 1, 1.0) == min(doubled, backoff.longest_seconds)


@given(BACKOFFS, st.integers(-(10**18), 0), CHANCES)
def test_without_a_failure_there_is_no_wait(backoff: Backoff, failures: int, chance: float) -> None:
    assert backoff.seconds(failures, chance) == 0


def test_the_waits_of_the_defaults() -> None:
    waits = [Backoff().seconds(failures, 1.0) for failures in range(10)]
    assert waits == [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]


def counted(job_id: UUID) -> int:
    """What an id is sorted by: its millisecond and its number within."""
    return job_id.int >> 80 << 12 | job_id.int >> 64 & 0xFFF


def test_job_ids_are_version_7_and_carry_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = new_job_id()
    assert (made.version, made.variant) == (7, RFC_4122)
    # The count within a millisecond may have run ahead, in this process, by what others made.
    assert made.int >> 80 >= before


def test_job_ids_sort_in_the_order_in_which_they_are_made_across_threads() -> None:
    def make(_: int) -> list[UUID]:
        return [new_job_id() for _ in range(5_000)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(make, range(8)))
    for made in found:
        assert made == sorted(made)
    everything = [one for made in found for one in made]
    assert len({counted(one) for one in everything}) == len(everything) == 40_000
    assert new_job_id() > max(everything)


def test_job_ids_do_not_go_back_when_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_job_id()
    monkeypatch.setattr(identity.time, "time_ns", lambda: 0)
    after = [new_job_id() for _ in range(10_000)]
    assert [before, *after] == sorted({before, *after})


def test_the_states_that_end_a_job() -> None:
    assert {status for status in JobStatus if status.is_terminal} == {
        JobStatus.DONE,
        JobStatus.FAILED,
        JobStatus.CANCELLED,
    }
    assert [JobStatus(status.value) for status in JobStatus] == list(JobStatus)
    with pytest.raises(ValueError, match="unknown"):
        JobStatus("unknown")


NOW = datetime(2026, 11, 15, 3, 0, tzinfo=UTC)
BEFORE, AFTER = NOW - timedelta(seconds=40), NOW + timedelta(seconds=40)
PENDING = {"status": JobStatus.PENDING, "visible_at": BEFORE}
RUNNING = {
    "status": JobStatus.RUNNING,
    "visible_at": AFTER,
    "lease_until": AFTER,
    "attempt_id": "a",
    "attempt_count": 1,
    "worker_is_connected": True,
}


def state(**given: Any) -> JobState:
    values: dict[str, Any] = {
        "now": NOW,
        "visible_at": None,
        "lease_until": None,
        "attempt_id": None,
        "attempt_count": 0,
        "is_locked_out": False,
        "worker_is_connected": False,
        **given,
    }
    return job_state(values.pop("status"), **values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (PENDING, JobState.READY),
        (PENDING | {"visible_at": AFTER}, JobState.LATER),
        (PENDING | {"visible_at": AFTER, "attempt_count": 1}, JobState.BACKOFF),
        (PENDING | {"is_locked_out": True}, JobState.LOCKED),
        (PENDING | {"visible_at": AFTER, "is_locked_out": True}, JobState.LATER),
        (RUNNING, JobState.RUNNING),
        (RUNNING | {"worker_is_connected": False}, JobState.LOST),
        (RUNNING | {"lease_until": BEFORE}, JobState.OVERDUE),
        (RUNNING | {"lease_until": BEFORE, "worker_is_connected": False}, JobState.OVERDUE),
        (RUNNING | {"attempt_id": None}, JobState.CANCELLING),
        (RUNNING | {"attempt_id": None, "lease_until": BEFORE}, JobState.CANCELLING),
    ],
)
def test_an_unfinished_job_says_why_nothing_happens_or_what_does(
    given: dict[str, Any], expected: JobState
) -> None:
    assert state(**given) is expected


@pytest.mark.parametrize("status", [one for one in JobStatus if one.is_terminal])
def test_a_finished_job_is_what_its_status_says(status: JobStatus) -> None:
    assert state(status=status).value == status.value


@given(st.uuids(), st.integers(1, 36))
def test_every_beginning_of_an_id_covers_it(job_id: UUID, length: int) -> None:
    lowest, highest = id_range(str(job_id)[:length])
    assert lowest <= job_id <= highest
    assert id_range(job_id.hex.upper()) == (job_id, job_id)


@given(st.uuids(), st.uuids(), st.integers(1, 32))
def test_an_id_that_begins_otherwise_is_not_covered(one: UUID, other: UUID, length: int) -> None:
    lowest, highest = id_range(one.hex[:length])
    assert (lowest <= other <= highest) == (other.hex[:length] == one.hex[:length])


@pytest.mark.parametrize(
    "text", ["", "   ", "-", "orders", "019a%", "0" * 33, "\u0661", "0x1", "1 2"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        id_range(text)
    assert "is not the id of a job" in raised.value.message
    assert "tidegate job list" in str(raised.value.hint)


def test_short_ids_tell_jobs_of_one_moment_apart() -> None:
    ids = [new_job_id() for _ in range(200)]
    shown = short_ids(ids)
    assert len(set(shown.values())) == len(ids)
    for job_id, text in shown.items():
        lowest, highest = id_range(text)
        assert [one for one in ids if lowest <= one <= highest] == [job_id]
    assert short_ids(ids[:1]) == {ids[0]: str(ids[0])[:13]}
    assert short_ids([]) == {}


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


AT = datetime(2026, 11, 15, 8, 41, tzinfo=UTC)
ID = UUID(int=7)


def notice(event: NoticeEvent = NoticeEvent.FAILURE, **options: object) -> Notice:
    return Notice(ID, event, "shop", "orders", AT, **options)  # type: ignore[arg-type]


def test_a_notice_says_what_happened() -> None:
    assert notice(error="no rows").text == "shop: orders failed: no rows"
    assert notice(failures=3).text == "shop: orders failed, 3 times in a row"
    assert notice(parameters={"day": "2026-11-01", "n": 1}).text == (
        "shop: orders day=2026-11-01 n=1 failed"
    )
    assert notice(NoticeEvent.RECOVERY, failures=1).text.endswith("after it had failed once")
    assert "enable orders" in notice(NoticeEvent.DISABLE, until="tomorrow").text


def test_the_same_matter_has_the_same_id_and_another_has_another() -> None:
    assert notice_id("failure", "shop", 1) == notice_id("failure", "shop", 1)
    parts = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c")]
    assert len({notice_id(*one) for one in parts}) == len(parts)


def test_a_document_is_json() -> None:
    document = notice(job_id=UUID(int=8), first_failed_at=AT, error="x").document
    assert json.loads(json.dumps(document)) == document
    assert document["at"] == "2026-11-15T08:41:00+00:00"


@given(st.text())
def test_nothing_in_a_message_for_slack_is_read_as_a_mention_or_a_link(error: str) -> None:
    message = slack_message(notice(error=error, job_id=ID).document)
    assert not {"<", ">"} & set(json.dumps(message, ensure_ascii=False))
    section = message["blocks"][0]["text"]["text"]
    assert len(section) <= 3_000


@given(st.text(max_size=3_000))
def test_an_error_is_shortened_and_never_empty(error: str) -> None:
    short = shorten(error)
    assert short is None or 0 < len(short) <= 1_000
    assert (short is None) == (not error.strip())


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


SECONDS = st.floats(min_value=0.0, max_value=1e6)


def trend(*seconds: float) -> Trend:
    return Trend("sync", "orders", seconds, (0,), "done", datetime(2026, 11, 15, tzinfo=UTC))


@given(st.lists(SECONDS, min_size=2))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    theirs = statistics.quantiles(values, n=100, method="inclusive")
    for share in (1, 50, 95, 99):
        assert percentile(values, share / 100) == pytest.approx(theirs[share - 1])


@given(st.lists(SECONDS))
def test_a_sparkline_has_a_bar_a_value_and_keeps_their_order(values: list[float]) -> None:
    bars = sparkline(values)
    assert len(bars) == len(values)
    for low, high in itertools.pairwise(values):
        if low <= high:
            first, second = values.index(low), values.index(high)
            assert bars[first] <= bars[second]


def test_a_run_is_slower_when_it_is_above_most_and_well_above_the_middle() -> None:
    usual = (10.0,) * 29
    assert trend(*usual, 10.0, 12.1).is_slower
    assert not trend(*usual, 10.0, 12.0).is_slower, "a fifth more is still usual"
    assert not trend(*((10.0, 20.0) * 15), 19.9).is_slower, "it often takes as long"
    assert not trend(*usual, 10.0, 9.0).is_slower


def test_only_the_last_thirty_say_what_is_usual() -> None:
    assert trend(*((100.0,) * 50), *((1.0,) * PREVIOUS), 2.0).is_slower
    assert not trend(*((1.0,) * 50), *((100.0,) * PREVIOUS), 2.0).is_slower


def test_with_too_few_runs_nothing_is_usual() -> None:
    assert not trend(*((1.0,) * (LEAST - 1)), 50.0).is_slower
    assert trend(*((1.0,) * LEAST), 50.0).is_slower
    assert not trend().is_slower
    assert trend().percentile(0.5) is None
