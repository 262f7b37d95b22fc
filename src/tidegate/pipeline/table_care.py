"""What health and maintenance of a lake's table are judged by, beyond its own metadata."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tidegate.lake.predicting import predict
from tidegate.model.health import OrphanEstimate
from tidegate.model.maintenance import Action, Effect, Order
from tidegate.model.relation import Endpoint
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


def estimate_orphans(
    context: Context, control: Connection, target: Endpoint
) -> OrphanEstimate | None:
    """What attempts that died have probably left; None where nothing tells."""
    return None


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
