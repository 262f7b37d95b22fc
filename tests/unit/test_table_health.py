"""What is wrong with a table, by which limits, and what should be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.maintenance import MaintenanceSettings
from tidegate.core.relation import Relation
from tidegate.core.table_actions import (
    OPTIONS,
    Action,
    Amount,
    ExpireSnapshots,
    Policy,
    RewriteDataFiles,
    Thresholds,
)
from tidegate.core.units import every, in_bytes, in_time
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.health import Health, OrphanEstimate, Severity, assess
from tidegate.maintenance.recommendation import Advice, LastRun, Recommendation, recommend

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MB = 1024 * 1024
WELL = TableFacts(
    uuid="u",
    location="file:/lake/raw/orders",
    metadata_location="file:/lake/raw/orders/metadata/1.json",
    format_version=2,
    snapshot_id=1,
    snapshot_at=NOW - timedelta(hours=3),
    snapshots=1,
    oldest_snapshot_at=NOW - timedelta(hours=3),
    branches=1,
    tags=0,
    records=1_000,
    target_file_bytes=512 * MB,
    data=Amount(2, 1_000 * MB),
    small=Amount(),
    small_after=0,
    partitions=1,
    largest_partition_bytes=1_000 * MB,
    median_partition_bytes=1_000 * MB,
    position_deletes=Amount(),
    position_deleted_rows=0,
    equality_deletes=Amount(),
    equality_deleted_rows=0,
    dangling_delete_files=0,
    manifests=Amount(1, 8_000),
    small_manifests=0,
    metadata_files=3,
)


def table(**given: Any) -> TableFacts:
    """A table that is well, but for what is given."""
    return replace(WELL, **given)


@st.composite
def tables(draw: st.DrawFn) -> TableFacts:
    """Any table that could be."""
    counts = st.integers(0, 2_000)
    small, others = draw(counts), draw(counts)
    snapshots = draw(st.integers(1, 500))
    age = timedelta(seconds=draw(st.integers(0, 30 * 86_400)))
    loose = draw(st.integers(0, snapshots - 1))
    positions = draw(counts)
    records = draw(st.integers(0, 10**9))
    median = draw(st.integers(0, 10**9))
    return table(
        snapshot_at=NOW - age / 4,
        snapshots=snapshots,
        oldest_snapshot_at=NOW - age,
        loose_snapshots=loose,
        oldest_loose_at=NOW - age / 2 if loose else None,
        records=records,
        data=Amount(small + others, draw(st.integers(0, 10**12))),
        small=Amount(small, small * draw(st.integers(0, 300 * MB))),
        small_after=draw(st.integers(0, small)),
        most_small_together=draw(st.integers(0, small)),
        partitions=draw(st.integers(1, 100)),
        largest_partition_bytes=median + draw(st.integers(0, 10**12)),
        median_partition_bytes=median,
        position_deletes=Amount(positions, positions * 100),
        position_deletes_after=draw(st.integers(0, positions)),
        position_deleted_rows=draw(st.integers(0, records)),
        equality_deletes=Amount(draw(counts), 10),
        dangling_delete_files=draw(st.integers(0, positions)),
        manifests=Amount(draw(st.integers(1, 500)), 10**6),
        small_manifests=draw(counts),
        may_delete_files=draw(st.booleans()),
    )


ORDERS = Relation("raw", "orders")


def test_without_a_word_the_rules_defaults_hold() -> None:
    assert MaintenanceSettings().policy_of("lake", ORDERS) == Policy()


def test_a_table_wins_over_its_namespace_and_that_over_its_catalog() -> None:
    settings = MaintenanceSettings.model_validate(
        {
            "thresholds": {"small_files": 1, "snapshots": 1},
            "for": {
                "lake": {"thresholds": {"small_files": 2, "manifests": 2}},
                "lake:raw": {"thresholds": {"small_files": 3}},
                "lake:raw.orders": {
                    "thresholds": {"small_files": 4},
                    "rewrite_manifests": {"enabled": False},
                },
            },
        }
    )
    found = settings.policy_of("lake", ORDERS)
    thresholds = found.thresholds
    assert (thresholds.small_files, thresholds.manifests, thresholds.snapshots) == (4, 2, 1)
    assert found.disabled == {Action.REWRITE_MANIFESTS}
    beside = settings.policy_of("lake", Relation("raw", "items"))
    assert (beside.thresholds.small_files, beside.disabled) == (3, frozenset())
    elsewhere = settings.policy_of("other", ORDERS)
    assert elsewhere.thresholds.small_files == 1


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


MANY_SMALL = table(
    data=Amount(230, 1), small=Amount(214, 214), small_after=1, most_small_together=214
)
OLD = table(snapshots=9, loose_snapshots=8, oldest_loose_at=NOW - timedelta(days=9))
MINUTES = timedelta(minutes=1)
moments = st.integers(0, 40 * 86_400).map(lambda seconds: NOW - timedelta(seconds=seconds))
runs = st.dictionaries(
    st.sampled_from(list(Action)),
    st.builds(
        LastRun,
        moments,
        st.sampled_from(("done", "failed", "skipped")),
        st.none(),
        st.integers(1, 50),
    ),
)
policies = st.builds(
    Policy,
    automatic=st.booleans(),
    disabled=st.frozensets(st.sampled_from(list(Action))),
)


def advised(
    facts: TableFacts,
    policy: Policy | None = None,
    last: Mapping[Action, LastRun] | None = None,
    busy: str | None = None,
    now: datetime = NOW,
) -> Recommendation:
    policy = policy or Policy()
    health = assess(facts, policy.thresholds, now=now)
    return recommend(facts, health, policy, last or {}, now=now, busy=busy)


def advice(action: Action, facts: TableFacts, **given: Any) -> Advice:
    return next(one for one in advised(facts, **given).advices if one.action is action)


def test_small_files_are_put_together_with_the_reason_in_figures() -> None:
    found = advice(Action.REWRITE_DATA_FILES, MANY_SMALL)
    assert found.run
    assert found.reason.startswith("214 of 230 data files are below 384 MB")
    assert found.evidence["small_files"]["value"] == 214
    assert (found.skip, found.next_at, found.every_seconds) == (None, NOW, 3_600)


@pytest.mark.parametrize(
    ("given", "skip"),
    [
        (
            {"last": LastRun(NOW - 20 * MINUTES, "done")},
            "ran 20 minutes ago and may run every hour",
        ),
        ({"last": LastRun(NOW - 90 * MINUTES, "failed", "full")}, "failed 90 minutes ago"),
        ({"last": LastRun(NOW - 90 * MINUTES, "done")}, "nothing was written since it last ran"),
        ({"busy": "0198"}, "the table is busy with job 0198"),
        ({"policy": Policy(disabled=frozenset(Action))}, "it is switched off for this table"),
        ({"facts": WELL}, "nothing to do"),
        ({"facts": replace(MANY_SMALL, snapshot_id=None)}, "the table was never written"),
        (
            {"facts": replace(MANY_SMALL, most_small_together=2)},
            "no partition has 5 small files (min_input_files), 2 at most",
        ),
    ],
)
def test_what_speaks_for_it_is_not_done_if(given: dict[str, Any], skip: str) -> None:
    facts = given.pop("facts", MANY_SMALL)
    if "last" in given:
        last = given.pop("last")
        given["last"] = {Action.REWRITE_DATA_FILES: last}
        if "nothing was written" not in skip:
            facts = replace(facts, snapshot_at=NOW)
    found = advice(Action.REWRITE_DATA_FILES, facts, **given)
    assert not found.run
    assert found.skip is not None
    assert found.skip.startswith(skip)


def test_a_run_that_was_skipped_was_no_run() -> None:
    last = {Action.REWRITE_DATA_FILES: LastRun(NOW - MINUTES, "skipped")}
    assert advice(Action.REWRITE_DATA_FILES, MANY_SMALL, last=last).run


def test_a_failure_is_waited_out_twice_as_long_each_time_up_to_a_day() -> None:
    facts = replace(MANY_SMALL, snapshot_at=NOW)
    waits = []
    for failures in (1, 2, 3, 40):
        last = LastRun(NOW - MINUTES, "failed", "no space", failures)
        found = advice(Action.REWRITE_DATA_FILES, facts, last={Action.REWRITE_DATA_FILES: last})
        assert found.next_at is not None
        waits.append(found.next_at - last.at)
    assert waits == [timedelta(hours=hours) for hours in (2, 4, 8, 24)]


def test_old_snapshots_go_by_cadence_even_where_no_limit_is_reached() -> None:
    facts = replace(OLD, oldest_loose_at=NOW - timedelta(days=6))
    assert assess(facts, Policy().thresholds, now=NOW).is_good
    found = advice(Action.EXPIRE_SNAPSHOTS, facts)
    assert (found.run, found.reason) == (True, "snapshots are expired every day")
    last = {Action.EXPIRE_SNAPSHOTS: LastRun(NOW - timedelta(hours=5), "done")}
    assert advice(Action.EXPIRE_SNAPSHOTS, facts, last=last).skip == (
        "ran 5 hours ago and may run every day"
    )


def test_many_snapshots_that_are_too_young_are_waited_for() -> None:
    young = table(snapshots=300, loose_snapshots=299, oldest_loose_at=NOW - timedelta(days=2))
    found = advice(Action.EXPIRE_SNAPSHOTS, young)
    assert found.skip == "no snapshot is older than 5 days"
    assert found.next_at == NOW + timedelta(days=3)


def test_the_last_snapshots_are_no_reason_to_run() -> None:
    policy = Policy(
        options={**Policy().options, Action.EXPIRE_SNAPSHOTS: ExpireSnapshots(retain_last=9)}
    )
    tagged = table(snapshots=120, tags=119)
    assert advice(Action.EXPIRE_SNAPSHOTS, tagged).skip == (
        "every snapshot is the head of a branch or has a tag"
    )
    found = advice(Action.EXPIRE_SNAPSHOTS, OLD, policy=policy)
    assert found.skip == "the last 9 snapshots of each branch are kept, and no more are there"


def test_orphans_are_looked_for_from_time_to_time_if_the_table_was_written() -> None:
    assert advice(Action.REMOVE_ORPHAN_FILES, WELL).reason == "orphans are looked for every 7 days"
    for days, run, skip in (
        (2, False, "nothing to do"),
        (9, True, None),
    ):
        written = NOW - timedelta(days=5)
        last = {Action.REMOVE_ORPHAN_FILES: LastRun(NOW - timedelta(days=days), "done")}
        found = advice(Action.REMOVE_ORPHAN_FILES, replace(WELL, snapshot_at=written), last=last)
        assert (found.run, found.skip) == (run, skip)


def test_files_that_another_table_may_share_are_never_deleted() -> None:
    found = advised(replace(OLD, may_delete_files=False))
    assert Action.EXPIRE_SNAPSHOTS not in found.actions
    assert Action.REMOVE_ORPHAN_FILES not in found.actions


def test_a_table_that_nothing_happens_to_by_itself_is_told_what_a_person_could_do() -> None:
    found = advised(MANY_SMALL)
    assert found.opted_out == "automatic maintenance is off for this table"
    assert Action.REWRITE_DATA_FILES in found.actions
    assert advised(MANY_SMALL, Policy(automatic=True)).opted_out is None


def test_the_order_has_the_options_of_the_policy() -> None:
    mine = RewriteDataFiles(min_input_files=3)
    policy = Policy(options={**Policy().options, Action.REWRITE_DATA_FILES: mine})
    order = advised(replace(MANY_SMALL, most_small_together=3), policy).order(policy)
    assert order is not None
    assert dict(order.steps)[Action.REWRITE_DATA_FILES] == mine
    assert advised(replace(WELL, snapshot_id=None)).order(policy) is None


@given(tables(), policies, runs, st.none() | st.just("0198"))
def test_every_action_is_advised_with_a_reason_to_run_or_a_reason_not_to(
    facts: TableFacts, policy: Policy, last: dict[Action, LastRun], busy: str | None
) -> None:
    found = advised(facts, policy, last, busy)
    assert [one.action for one in found.advices] == list(Action)
    for one in found.advices:
        assert one.run == (one.skip is None)
        assert one.reason
        if not one.run:
            continue
        assert busy is None
        assert one.action not in policy.disabled
        assert one.next_at == NOW
        assert one.evidence
        ran = last.get(one.action)
        if ran is not None and ran.status != "skipped":
            assert NOW - ran.at >= timedelta(seconds=policy.every_seconds[one.action])
    order = found.order(policy)
    assert (order is None) == (not found.actions)
    if order is not None:
        assert order.actions == found.actions
        assert all(isinstance(given, OPTIONS[action]) for action, given in order.steps)
    assert found.document()["actions"] == [action.value for action in found.actions]


@given(tables(), policies, runs)
def test_what_may_run_later_runs_then_if_nothing_else_changes(
    facts: TableFacts, policy: Policy, last: dict[Action, LastRun]
) -> None:
    for one in advised(facts, policy, last).advices:
        if one.next_at is not None and not one.run:
            later = one.next_at + timedelta(seconds=1)
            then = advice(one.action, facts, policy=policy, last=last, now=later)
            assert then.run or then.next_at is None or then.next_at > later
