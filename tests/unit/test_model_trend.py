"""Trends: percentiles, sparklines, and what is slower than usual."""

from __future__ import annotations

import itertools
import statistics
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.history.record import LEAST, PREVIOUS, Trend, percentile, sparkline

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
