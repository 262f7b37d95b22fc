"""Jobs by property: their ids, their states, and how long a failed one waits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core import identity
from tidegate.core.identity import new_job_id
from tidegate.core.units import Backoff
from tidegate.jobs.job import JobStatus

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
