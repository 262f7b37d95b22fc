"""What is wrong with a table is told with figures, and by the limits that hold for it alone."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.table_actions import Action, Amount, Thresholds
from tidegate.core.units import every, in_bytes, in_time
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.health import Health, OrphanEstimate, Severity, assess
from unit.table_states import MB, NOW, WELL, table, tables

OFF = Thresholds(**{one.name: 0 for one in fields(Thresholds)})
ORPHANS = OrphanEstimate(None, dead_attempts=7, files=140, bytes=140 * MB)


def names(health: Health) -> list[str]:
    return [one.name for one in health.issues]


def health_of(facts: TableFacts, limits: Thresholds | None = None, **given: Any) -> Health:
    return assess(facts, limits or Thresholds(), now=NOW, **given)


def test_a_table_without_trouble_is_good() -> None:
    assert health_of(WELL) == Health()
    assert health_of(WELL).is_good
    assert health_of(WELL).status == "good"


@pytest.mark.parametrize(
    ("facts", "name", "message", "action"),
    [
        (
            table(data=Amount(230, 0), small=Amount(214, 214 * 1_258_291)),
            "small_files",
            "214 of 230 data files are below 384 MB, 1.2 MB on average; 20 is the limit",
            Action.REWRITE_DATA_FILES,
        ),
        (
            table(snapshots=100),
            "too_many_snapshots",
            "100 snapshots are kept; 100 is the limit",
            Action.EXPIRE_SNAPSHOTS,
        ),
        (
            table(loose_snapshots=3, oldest_loose_at=NOW - timedelta(days=9)),
            "old_snapshots",
            "the oldest snapshot that nothing refers to is 9 days old; 7 days is the limit",
            Action.EXPIRE_SNAPSHOTS,
        ),
        (
            table(manifests=Amount(60, 60 * 7_000), small_manifests=60),
            "small_manifests",
            "60 of 60 manifests are small, 6.8 KB on average; 50 is the limit",
            Action.REWRITE_MANIFESTS,
        ),
        (
            table(position_deletes=Amount(12, 9), position_deleted_rows=40),
            "position_deletes",
            "12 position delete files with 40 rows; 10 is the limit",
            Action.REWRITE_POSITION_DELETE_FILES,
        ),
        (
            table(
                position_deletes=Amount(12, 9), position_deletes_after=12, position_deleted_rows=40
            ),
            "position_deletes",
            "12 position delete files with 40 rows; 10 is the limit",
            Action.REWRITE_DATA_FILES,
        ),
        (
            table(equality_deletes=Amount(10, 9), equality_deleted_rows=1),
            "equality_deletes",
            "10 equality delete files with 1 row; 10 is the limit",
            Action.REWRITE_DATA_FILES,
        ),
        (
            table(position_deletes=Amount(1, 9), position_deleted_rows=120),
            "deleted_rows",
            "120 of 1,000 rows in data files are deleted, 12%; 10% is the limit",
            Action.REWRITE_DATA_FILES,
        ),
        (
            table(position_deletes=Amount(3, 9), dangling_delete_files=1),
            "dangling_deletes",
            "1 of 3 delete files delete nothing any more; 1 is the limit",
            Action.REWRITE_POSITION_DELETE_FILES,
        ),
        (
            table(partitions=9, largest_partition_bytes=30_000 * MB),
            "partition_skew",
            "the largest of 9 partitions has 29 GB, 30 times the one in the middle; "
            "20 times is the limit",
            None,
        ),
    ],
)
def test_each_issue_says_what_how_much_and_what_helps(
    facts: TableFacts, name: str, message: str, action: Action | None
) -> None:
    (issue,) = health_of(facts).issues
    assert (issue.name, issue.message, issue.action) == (name, message, action)


def test_what_dead_attempts_have_left_is_told_as_an_estimate() -> None:
    (issue,) = health_of(WELL, orphan_estimate=ORPHANS).issues
    assert issue.message == (
        "7 attempts that died have probably left 140 files, 140 MB; 100 is the limit"
    )
    assert issue.action is Action.REMOVE_ORPHAN_FILES
    assert issue.evidence["value"] == 140


def test_a_quiet_table_is_well_however_old_its_head_and_its_tags_are() -> None:
    old = NOW - timedelta(days=900)
    assert health_of(table(snapshots=9, tags=8, snapshot_at=old, oldest_snapshot_at=old)).is_good


def test_a_large_partition_among_small_ones_is_no_matter_below_one_file() -> None:
    assert health_of(
        table(partitions=9, largest_partition_bytes=9, median_partition_bytes=0)
    ).is_good


@given(tables())
def test_a_limit_of_0_switches_its_check_off(facts: TableFacts) -> None:
    assert health_of(facts, OFF, orphan_estimate=ORPHANS).is_good
    for one in fields(Thresholds):
        only = replace(OFF, **{one.name: getattr(Thresholds(), one.name)})
        assert len(health_of(facts, only, orphan_estimate=ORPHANS).issues) <= 1


@given(tables(), st.floats(1.0, 100.0))
def test_higher_limits_never_find_more(facts: TableFacts, times: float) -> None:
    lower = health_of(facts, orphan_estimate=ORPHANS)
    limits = Thresholds(**{name: value * times for name, value in asdict(Thresholds()).items()})
    higher = health_of(facts, limits, orphan_estimate=ORPHANS)
    assert set(names(higher)) <= set(names(lower))
    severities = {one.name: one.severity for one in lower.issues}
    for issue in higher.issues:
        assert severities[issue.name] == Severity.CRITICAL or issue.severity == Severity.WARNING


@given(tables())
def test_every_issue_has_reached_its_limit_and_is_critical_beyond_several_times_of_it(
    facts: TableFacts,
) -> None:
    health = health_of(facts, orphan_estimate=ORPHANS)
    assert len(set(names(health))) == len(health.issues)
    for issue in health.issues:
        value, limit = issue.evidence["value"], issue.evidence["limit"]
        assert value >= limit * 0.999
        times = 100 if issue.name == "dangling_deletes" else 5
        assert (issue.severity is Severity.CRITICAL) == (value >= times * limit)
    assert health.status == (
        "good"
        if health.is_good
        else max((one.severity.value for one in health.issues), key=["warning", "critical"].index)
    )
    assert health.document()["issues"] == [one.document() for one in health.issues]


def test_each_attempt_that_died_may_have_left_what_a_load_brings() -> None:
    estimate = OrphanEstimate.of(
        NOW, dead_attempts=3, noted_folders=1, files_per_load=4.0, bytes_per_file=10.0
    )
    assert (estimate.files, estimate.bytes) == (12, 120)
    nothing = OrphanEstimate.of(
        None, dead_attempts=0, noted_folders=0, files_per_load=4.0, bytes_per_file=10.0
    )
    assert nothing.files == 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (in_bytes(0), "0 bytes"),
        (in_bytes(1_258_291), "1.2 MB"),
        (in_bytes(384 * MB), "384 MB"),
        (in_bytes(5_000_000 * MB), "4.8 TB"),
        (in_time(1), "1 second"),
        (in_time(1_200), "20 minutes"),
        (in_time(7 * 86_400), "7 days"),
        (every(3_600), "every hour"),
        (every(7 * 86_400), "every 7 days"),
    ],
)
def test_figures_are_told_in_the_unit_that_suits_them(said: str, expected: str) -> None:
    assert said == expected
