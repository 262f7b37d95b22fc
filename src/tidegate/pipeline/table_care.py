"""What maintenance would do to a table as it is now, by the same limits as when it is done."""

from __future__ import annotations

from datetime import datetime

from tidegate.destinations.lake import LakeDestination
from tidegate.errors import DestinationError, TidegateError
from tidegate.lake.predicting import predict
from tidegate.log import log
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    Effect,
    ExpireSnapshots,
    Order,
    RemoveOrphanFiles,
)
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.pipeline.needed_snapshots import bound_expiry
from tidegate.pipeline.orphan_removal import MARGIN_SECONDS
from tidegate.postgres.databases import CONTROL


def foretell(
    context: Context, target: Endpoint, order: Order, *, now: datetime
) -> dict[Action, Effect]:
    """What each action would do to the table as it is; no Spark is started."""
    return {
        action: foretell_action(context, target, action, options, now=now)
        for action, options in order.steps
    }


def foretell_cheaply(
    context: Context, target: Endpoint, order: Order, *, now: datetime
) -> dict[Action, Effect]:
    """The same without what needs a list of all files, and without what cannot be told."""
    found: dict[Action, Effect] = {}
    for action, options in order.steps:
        if action is Action.REMOVE_ORPHAN_FILES:
            continue
        try:
            found[action] = foretell_action(context, target, action, options, now=now)
        except TidegateError as error:
            log.info("not_foretold", action=action.value, error=error.message)
    return found


def foretell_action(
    context: Context, target: Endpoint, action: Action, options: ActionOptions, *, now: datetime
) -> Effect:
    """What one action would do; what others still need stays, as it does when it is done."""
    before = None
    if isinstance(options, ExpireSnapshots):
        options = _without_needed(context, target, options, now)
    if isinstance(options, RemoveOrphanFiles):
        before = _orphans_before(context, options)
    catalog = context.catalog(target.connection)
    return predict(catalog, target.relation, action, options, now=now, orphans_before=before)


def _without_needed(
    context: Context, target: Endpoint, options: ExpireSnapshots, now: datetime
) -> ExpireSnapshots:
    destination = context.destination(target)
    if not isinstance(destination, LakeDestination):
        raise DestinationError(f"{target} is no table of a lake", "name one that is")
    return bound_expiry(context, destination, options, now).options


def _orphans_before(context: Context, options: RemoveOrphanFiles) -> datetime | None:
    with context.databases.lease(CONTROL) as control:
        row = control.execute(
            context.plane.statement("orphan_files", "orphans_before"),
            {"age": options.older_than_seconds + MARGIN_SECONDS, "margin": MARGIN_SECONDS},
        ).fetchone()
    return None if row is None else row[0]
