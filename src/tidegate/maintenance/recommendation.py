"""What should be done to a lake's table now, why, and why the rest should not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.core.table_actions import (
    DAY,
    Action,
    ActionList,
    ExpireSnapshots,
    Policy,
    RewriteDataFiles,
)
from tidegate.core.units import counted, every, in_time
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.health import Health

_DONE, _FAILED = "done", "failed"
_LONGEST_BACKOFF = DAY
_DELETING = (Action.EXPIRE_SNAPSHOTS, Action.REMOVE_ORPHAN_FILES)
NOTHING = "nothing to do"


@dataclass(frozen=True, slots=True)
class LastRun:
    """How an action went when it was last tried on a table."""

    at: datetime
    status: str
    """done, failed or skipped"""
    error: str | None = None
    failures: int = 1
    """how often it has failed in a row, if it has"""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said of one action."""

    action: Action
    run: bool
    reason: str
    """what speaks for it"""
    evidence: Mapping[str, Any]
    every_seconds: float
    last_at: datetime | None = None
    next_at: datetime | None = None
    """when it may run at the earliest, if anything speaks for it"""
    skip: str | None = None
    """why not, where `run` is False"""

    def document(self) -> dict[str, Any]:
        return {
            "action": self.action.value,
            "run": self.run,
            "reason": self.reason,
            "evidence": dict(self.evidence),
            "every_seconds": self.every_seconds,
            "last_at": None if self.last_at is None else self.last_at.isoformat(),
            "next_at": None if self.next_at is None else self.next_at.isoformat(),
            "skip": self.skip,
        }


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What is said of every action, in the order in which they are done."""

    advices: tuple[Advice, ...]
    opted_out: str | None = None
    """why nothing of it happens by itself; a person may still order it"""

    @property
    def actions(self) -> tuple[Action, ...]:
        """What should be done now."""
        return tuple(one.action for one in self.advices if one.run)

    def order(self, policy: Policy) -> ActionList | None:
        """What should be done now, with the options that hold for the table."""
        if not self.actions:
            return None
        return ActionList.of({action: policy.options[action] for action in self.actions})

    def document(self) -> dict[str, Any]:
        return {
            "actions": [action.value for action in self.actions],
            "opted_out": self.opted_out,
            "advices": [one.document() for one in self.advices],
        }


def recommend(
    facts: TableFacts,
    health: Health,
    policy: Policy,
    last: Mapping[Action, LastRun],
    *,
    now: datetime,
    busy: str | None = None,
) -> Recommendation:
    """What should be done to a table now; `busy` is the job that holds it."""
    opted_out = None if policy.automatic else "automatic maintenance is off for this table"
    return Recommendation(
        tuple(
            _advise(action, facts, health, policy, last.get(action), now, busy) for action in Action
        ),
        opted_out,
    )


def _advise(
    action: Action,
    facts: TableFacts,
    health: Health,
    policy: Policy,
    last: LastRun | None,
    now: datetime,
    busy: str | None,
) -> Advice:
    ran = last if last is not None and last.status in (_DONE, _FAILED) else None
    plain = Advice(
        action,
        run=False,
        reason=NOTHING,
        evidence={},
        every_seconds=policy.every_seconds[action],
        last_at=None if ran is None else ran.at,
    )
    if facts.snapshot_id is None:
        return replace(plain, skip="the table was never written")
    wanted = _wanted(plain, facts, health, policy, ran, now)
    if action in policy.disabled:
        return replace(wanted, skip="it is switched off for this table", next_at=None)
    if action in _DELETING and not facts.may_delete_files:
        return replace(
            wanted,
            skip="the table says that its files may be others' too (gc.enabled)",
            next_at=None,
        )
    if wanted.skip is not None:
        return wanted
    return _when(wanted, ran, now, busy)


def _wanted(
    plain: Advice,
    facts: TableFacts,
    health: Health,
    policy: Policy,
    ran: LastRun | None,
    now: datetime,
) -> Advice:
    """What speaks for an action; `skip` where nothing does, or where it would not help."""
    issues = health.helped_by(plain.action)
    if issues:
        wanted = replace(
            plain,
            reason="; ".join(one.message for one in issues),
            evidence={one.name: dict(one.evidence) for one in issues},
        )
    else:
        wanted = _by_cadence(plain, facts, policy, ran, now)
    if wanted.reason == NOTHING:
        return replace(wanted, skip=NOTHING)
    if plain.action is Action.EXPIRE_SNAPSHOTS:
        return _expirable(wanted, facts, policy, now)
    if plain.action is Action.REMOVE_ORPHAN_FILES:
        return wanted
    if ran is not None and ran.status == _DONE and _unwritten_since(facts, ran):
        return replace(wanted, skip="nothing was written since it last ran")
    if plain.action is Action.REWRITE_DATA_FILES and set(wanted.evidence) == {"small_files"}:
        return _packable(wanted, facts, policy)
    return wanted


def _by_cadence(
    plain: Advice, facts: TableFacts, policy: Policy, ran: LastRun | None, now: datetime
) -> Advice:
    """What is done from time to time, however well the table is."""
    often = every(plain.every_seconds)
    if plain.action is Action.EXPIRE_SNAPSHOTS and _older(facts, policy, now):
        return replace(
            plain,
            reason=f"snapshots are expired {often}",
            evidence={"loose_snapshots": facts.loose_snapshots},
        )
    if plain.action is Action.REMOVE_ORPHAN_FILES and (
        ran is None or ran.status == _FAILED or not _unwritten_since(facts, ran)
    ):
        return replace(
            plain,
            reason=f"orphans are looked for {often}",
            evidence={"last_at": None if ran is None else ran.at.isoformat()},
        )
    return plain


def _expirable(wanted: Advice, facts: TableFacts, policy: Policy, now: datetime) -> Advice:
    """Not where all that is there is too young, or one of the last, which are kept."""
    options = policy.options[Action.EXPIRE_SNAPSHOTS]
    assert isinstance(options, ExpireSnapshots)
    kept = (options.retain_last - 1) * facts.branches
    if not facts.loose_snapshots:
        return replace(wanted, skip="every snapshot is the head of a branch or has a tag")
    if facts.loose_snapshots <= kept:
        last = counted(options.retain_last, "snapshot")
        skip = f"the last {last} of each branch are kept, and no more are there"
        return replace(wanted, skip=skip)
    if not _older(facts, policy, now):
        at = facts.oldest_loose_at
        return replace(
            wanted,
            skip=f"no snapshot is older than {in_time(options.older_than_seconds)}",
            next_at=None if at is None else at + timedelta(seconds=options.older_than_seconds),
        )
    return wanted


def _older(facts: TableFacts, policy: Policy, now: datetime) -> bool:
    options = policy.options[Action.EXPIRE_SNAPSHOTS]
    assert isinstance(options, ExpireSnapshots)
    at = facts.oldest_loose_at
    return at is not None and (now - at).total_seconds() > options.older_than_seconds


def _packable(wanted: Advice, facts: TableFacts, policy: Policy) -> Advice:
    options = policy.options[Action.REWRITE_DATA_FILES]
    assert isinstance(options, RewriteDataFiles)
    if facts.most_small_together >= options.min_input_files:
        return wanted
    return replace(
        wanted,
        skip=f"no partition has {options.min_input_files} small files (min_input_files), "
        f"{facts.most_small_together} at most",
    )


def _unwritten_since(facts: TableFacts, ran: LastRun) -> bool:
    return facts.snapshot_at is not None and facts.snapshot_at <= ran.at


def _when(wanted: Advice, ran: LastRun | None, now: datetime, busy: str | None) -> Advice:
    """Not too often, and not beside another."""
    if ran is not None:
        may = ran.at + timedelta(seconds=_wait(wanted.every_seconds, ran))
        if now < may:
            ago = in_time((now - ran.at).total_seconds())
            skip = f"ran {ago} ago and may run {every(wanted.every_seconds)}"
            if ran.status == _FAILED:
                skip = f"failed {ago} ago, tried again in {in_time((may - now).total_seconds())}"
            return replace(wanted, skip=skip, next_at=may)
    if busy is not None:
        return replace(wanted, skip=f"the table is busy with job {busy}", next_at=now)
    return replace(wanted, run=True, next_at=now)


def _wait(often: float, ran: LastRun) -> float:
    """Twice as long after each failure in a row, up to a day."""
    if ran.status != _FAILED:
        return often
    return max(often, min(often * 2.0 ** min(ran.failures, 30), _LONGEST_BACKOFF))
