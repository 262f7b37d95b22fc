"""What each action does to a table; none of them changes what a reader finds in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tidegate.lake import procedures
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    Amount,
    Effect,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)
from tidegate.model.table_facts import TableFacts
from tidegate.pipeline.action_work import Result, Step, Work
from tidegate.pipeline.expiring import expire_snapshots
from tidegate.pipeline.orphan_removal import remove_orphan_files

_REWRITTEN = "rewritten_data_files_count"
_NO_DELETES = "the table has no position delete files"


def rewrite_data_files(work: Work, options: ActionOptions) -> Step:
    assert isinstance(options, RewriteDataFiles)
    facts = work.facts()
    deletes = facts.position_deletes.files + facts.equality_deletes.files
    statement = procedures.rewrite_data_files(
        work.catalog, work.relation, options, dangling=deletes > 0
    )
    predicted = work.predict(Action.REWRITE_DATA_FILES, options)
    return _rewriting(work, predicted, statement, lambda after: after.data)


def rewrite_position_delete_files(work: Work, options: ActionOptions) -> Step:
    assert isinstance(options, RewritePositionDeleteFiles)
    facts = work.facts()
    if not facts.position_deletes.files:
        nothing = Effect("delete files", Amount(), Amount())
        return Step(nothing, lambda: Result(skipped=_NO_DELETES), lambda _: nothing)
    # One that deletes nothing any more goes only when it is rewritten, alone or not.
    dangling = facts.dangling_delete_files > 0
    statement = procedures.rewrite_position_delete_files(
        work.catalog, work.relation, options, everything=dangling
    )
    expected = replace(options, min_input_files=1) if dangling else options
    predicted = work.predict(Action.REWRITE_POSITION_DELETE_FILES, expected)
    return _rewriting(work, predicted, statement, lambda after: after.position_deletes)


def rewrite_manifests(work: Work, options: ActionOptions) -> Step:
    statement = procedures.rewrite_manifests(work.catalog, work.relation)
    predicted = work.predict(Action.REWRITE_MANIFESTS, options)
    return _rewriting(work, predicted, statement, lambda after: after.manifests)


def _rewriting(
    work: Work, predicted: Effect, statement: str, amount: Callable[[TableFacts], Amount]
) -> Step:
    return Step(
        predicted,
        partial(_call, work, statement),
        lambda result: replace(
            predicted, after=amount(work.facts()), rewritten=result.told.get(_REWRITTEN)
        ),
    )


def _call(work: Work, statement: str) -> Result:
    return Result(work.call(statement))


ACTIONS: Mapping[Action, Callable[[Work, ActionOptions], Step]] = {
    Action.EXPIRE_SNAPSHOTS: expire_snapshots,
    Action.REMOVE_ORPHAN_FILES: remove_orphan_files,
    Action.REWRITE_DATA_FILES: rewrite_data_files,
    Action.REWRITE_POSITION_DELETE_FILES: rewrite_position_delete_files,
    Action.REWRITE_MANIFESTS: rewrite_manifests,
}
