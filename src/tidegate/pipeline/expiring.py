"""Forgetting snapshots, but none that somebody still needs."""

from __future__ import annotations

from dataclasses import replace

from tidegate.lake import procedures
from tidegate.model.maintenance import Action, ActionOptions, Amount, Effect, ExpireSnapshots
from tidegate.pipeline.action_work import Result, Step, Work
from tidegate.pipeline.needed_snapshots import bound_expiry

_FOR_EVER = ExpireSnapshots(older_than_seconds=1e9, retain_last=1_000_000_000)


def expire_snapshots(work: Work, options: ActionOptions) -> Step:
    assert isinstance(options, ExpireSnapshots)
    now, before = work.now(), work.facts()
    needed = bound_expiry(work.context, work.destination, options, now)
    predicted = work.predict(Action.EXPIRE_SNAPSHOTS, needed.options, now=now)
    statement = procedures.expire_snapshots(
        work.catalog, work.relation, needed.older_than, options.retain_last
    )

    def do() -> Result:
        return Result(work.call(statement), needed.notes)

    def actual(_: Result) -> Effect:
        gone = before.snapshots - work.facts().snapshots
        return replace(predicted, after=_all_files(work), snapshots=gone)

    return Step(predicted, do, actual)


def _all_files(work: Work) -> Amount:
    """The files of all snapshots there are."""
    return work.predict(Action.EXPIRE_SNAPSHOTS, _FOR_EVER).before
