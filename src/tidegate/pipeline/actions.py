"""What each action does to a table; none of them changes what a reader finds in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from tidegate.lake import procedures
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)
from tidegate.pipeline.action_work import Result, Work
from tidegate.pipeline.needed_snapshots import find_needed
from tidegate.pipeline.orphan_removal import remove_orphans


def expire_snapshots(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, ExpireSnapshots)
    wanted = work.now() - timedelta(seconds=options.older_than_seconds)
    needed = find_needed(work.context, work.destination, wanted)
    told = work.call(
        procedures.expire_snapshots(
            work.destination.catalog,
            work.destination.relation,
            needed.older_than,
            options.retain_last,
        )
    )
    return Result(told, needed.notes)


def remove_orphan_files(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, RemoveOrphanFiles)
    return remove_orphans(work, options)


def rewrite_data_files(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, RewriteDataFiles)
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_data_files(catalog, relation, options)))


def rewrite_position_delete_files(work: Work, options: ActionOptions) -> Result:
    assert isinstance(options, RewritePositionDeleteFiles)
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_position_delete_files(catalog, relation, options)))


def rewrite_manifests(work: Work, _: ActionOptions) -> Result:
    catalog, relation = work.destination.catalog, work.destination.relation
    return Result(work.call(procedures.rewrite_manifests(catalog, relation)))


ACTIONS: Mapping[Action, Callable[[Work, ActionOptions], Result]] = {
    Action.EXPIRE_SNAPSHOTS: expire_snapshots,
    Action.REMOVE_ORPHAN_FILES: remove_orphan_files,
    Action.REWRITE_DATA_FILES: rewrite_data_files,
    Action.REWRITE_POSITION_DELETE_FILES: rewrite_position_delete_files,
    Action.REWRITE_MANIFESTS: rewrite_manifests,
}
