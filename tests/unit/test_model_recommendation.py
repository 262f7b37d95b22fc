"""What should be done to a table, and why the rest should not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.table_actions import (
    OPTIONS,
    Action,
    Amount,
    ExpireSnapshots,
    Policy,
    RewriteDataFiles,
)
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.health import assess
from tidegate.maintenance.recommendation import Advice, LastRun, Recommendation, recommend
from unit.table_states import NOW, WELL, table, tables

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
