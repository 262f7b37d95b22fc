"""What maintenance would do to a lake's table, told before it is ordered."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tidegate.lake.predicting import predict
from tidegate.model.maintenance import Action, Effect, Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context


def foretell(
    context: Context, target: Endpoint, order: Order, *, now: datetime
) -> dict[Action, Effect]:
    """What each action would do to the table as it is now; no Spark is started."""
    catalog = context.catalog(target.connection)
    return {
        action: predict(catalog, target.relation, action, options, now=now)
        for action, options in order.steps
    }


def foretell_cheaply(
    context: Context, target: Endpoint, order: Order, *, now: datetime
) -> dict[Action, Effect]:
    """The same for what can be told from metadata alone: orphans need a list of all files."""
    return foretell(context, target, _without(order, (Action.REMOVE_ORPHAN_FILES,)), now=now)


def _without(order: Order, actions: Iterable[Action]) -> Order:
    left_out = frozenset(actions)
    return Order(tuple(step for step in order.steps if step[0] not in left_out))
